"""Rows of Parquet and Arrow files, and of data sets on the hub: batch by batch, never a whole file."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from eval.traces.reading.records import Record
from eval.traces.request import TraceError


def is_hub_name(name: str) -> bool:
    """Whether it has the form ``owner/name``."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None


def parquet_rows(path: Path) -> Iterator[Record]:
    """The rows of a file.

    Raises:
        TraceError: it is no Parquet file that can be read.
    """
    datasets = _datasets(str(path))
    try:
        rows = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)
        for number, row in enumerate(rows, start=1):
            yield Record(f"{path.name}: row {number}", row)
    except Exception as error:  # of Arrow, of datasets, of the file system: they have no base in common
        raise TraceError(f"trace {path}: not a Parquet file that can be read ({_one_line(error)})") from None


def arrow_rows(path: Path) -> Iterator[Record]:
    """The rows of a file, or of a stream as ``datasets`` saves it to disk.

    Raises:
        TraceError: it is no Arrow file that can be read.
    """
    try:
        with pa.memory_map(str(path)) as source:
            is_file = source.read(6) == b"ARROW1"
            source.seek(0)
            reader = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source)
            batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                yield Record(f"{path.name}: row {number}", row)
    except (pa.ArrowException, OSError) as error:
        raise TraceError(f"trace {path}: not an Arrow file that can be read ({_one_line(error)})") from None


def hub_rows(name: str, data_file: str | None) -> Iterator[Record]:
    """The rows of the split ``train`` of a data set.

    Raises:
        TraceError: the hub cannot be reached, or has no such data set.
    """
    datasets = _datasets(name)
    try:
        # datasets alone would try for 23 s, with a warning each time, before it found that there is no network.
        import huggingface_hub

        huggingface_hub.dataset_info(name, timeout=10)
        rows = datasets.load_dataset(name, data_files=data_file, split="train", streaming=True)
        for number, row in enumerate(rows, start=1):
            yield Record(f"{name}: row {number}", row)
    except Exception as error:  # of httpx, of the hub, of datasets: they have no base in common
        raise TraceError(
            f"trace {name}: no such file, and as a data set of the hub not reachable ({_one_line(error)}); "
            "give a local .jsonl or .parquet file in its schema"
        ) from None


def _datasets(source: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise TraceError(f"trace {source}: needs the package datasets: in a checkout, pip install '.[eval]'") from None
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # what it would log it raises as well
    return datasets


def _one_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
