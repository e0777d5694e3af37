"""What the console script ``radix-tlru`` does without SGLang: a model to try (``demo_model``), a live view
(``top``)."""
