"""Traces of any format as one stream of requests: read from files and data sets, or generated.

| where | its job | in → out |
|---|---|---|
| `trace.py` | `open_trace`: which reader or generator, order of arrival, notes | name, options → `Trace` |
| `request.py` | what a request says | – |
| `readers/` | one module a format | records → requests |
| `reading/` | what readers share: files, records, texts, blocks, lengths | – |
| `generators/` | one module a kind of workload | parameters, seed → requests |
| `parameters.py` | parameters of a workload or of arrivals, checked | `key=value,…` → a dataclass |
| `arrivals.py` | when conversations start, for data without times | births, waits → arrivals |
| `sessions.py` | for live replay: what each request waits for | requests → starts |
| `variants.py` | other traffic made of a trace: halves, other starts, slower, first turns | trace → trace |
| `mixes.py` | two traces in one server: one after the other, or at once | traces → trace |
| `drawn.py` | generated traces whose parameters are drawn | name, seed → name |
| `facts.py`, `working_set.py`, `command.py` | `eval trace`: what is in a trace | trace → figures |

Nothing here knows a policy or a cache.
"""

from __future__ import annotations

from eval.traces.arrivals import Arrivals
from eval.traces.generators import GENERATORS
from eval.traces.generators.synthetic import Synthetic
from eval.traces.readers import READERS
from eval.traces.reading.notes import Note
from eval.traces.request import Path, Request, TraceError
from eval.traces.trace import FORMATS, SOURCES, Trace, check_name, generator_of, open_trace

__all__ = [
    "FORMATS",
    "GENERATORS",
    "READERS",
    "SOURCES",
    "Arrivals",
    "Note",
    "Path",
    "Request",
    "Synthetic",
    "Trace",
    "TraceError",
    "check_name",
    "generator_of",
    "open_trace",
]
