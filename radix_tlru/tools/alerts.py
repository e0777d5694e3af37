"""``radix-tlru dashboard --rules``: when somebody should be told (``prometheus_rules.yml``, beside this file)."""

from __future__ import annotations

from importlib.resources import files

__all__ = ["rules"]


def rules() -> str:
    """Prometheus' alerting rules, as YAML."""
    return files("radix_tlru.tools").joinpath("prometheus_rules.yml").read_text()
