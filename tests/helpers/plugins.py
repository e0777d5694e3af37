"""Plugins of SGLang's for a test's own servers."""

from __future__ import annotations

from pathlib import Path


def write_plugin(directory: Path, source: str) -> str:
    """Lay out a plugin with a function ``register``; returns the PYTHONPATH that a server finds it on."""
    (directory / "plugin_of_a_test.py").write_text(source)
    packaged = directory / "plugin_of_a_test-1.0.dist-info"
    packaged.mkdir()
    (packaged / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-of-a-test\nVersion: 1.0\n")
    (packaged / "entry_points.txt").write_text("[sglang.srt.plugins]\nof_a_test = plugin_of_a_test:register\n")
    return str(directory)
