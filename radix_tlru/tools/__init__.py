"""What the console script ``radix-tlru`` does without SGLang.

============  ============================================  ======================================
file          its job                                       in → out
============  ============================================  ======================================
demo_model    a model to try                                a folder → a model without training
http          asking a server                               a URL, a path → an answer, or a refusal
scrape        what a server says of itself                  its URL → a snapshot of its metrics
top/          a live view                                   snapshots → a screen
explain       why a request prefilled what it did           its id → five lines
explanation   … as a server keeps it, and in words          fields → five lines
dashboard     a Grafana dashboard                           names of metrics → JSON
alerts        Prometheus' alerting rules                    – → YAML
prompts       what is to be warm                            a file or folder → prompts
warm          prompts that are prefilled and kept warm      a server's URL, prompts → what was cached of them
state_text    what a server has learned                     its file of --tlru-state → a few lines
============  ============================================  ======================================
"""
