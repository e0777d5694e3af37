"""Files of ``--tlru-state`` with other contents."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from radix_tlru.learning.state_file import StateFile

Values = dict[str, Any]
"""The header, and arrays by name."""


def changed(file: StateFile, change: Callable[[Values], None]) -> None:
    """Save the file again with another header or other arrays."""
    with np.load(file.path) as archive:
        arrays = dict(archive)
    values = {**arrays, "header": json.loads(str(arrays["header"]))}
    change(values)
    with file.path.open("wb") as out:
        np.savez(out, **{**values, "header": np.array(json.dumps(values["header"]))})
