"""`python -m eval replay`: conversations against live servers, side by side, and the TTFT that a client measures.

| file | its job | in → out |
|---|---|---|
| `load.py` | what is sent | a trace → conversations of turns |
| `client.py` | one request, with the clock at the client | tokens or messages → `RequestResult` |
| `play.py` | who sends what when | a load, a server → results as they come in |
| `arms.py` | the servers that are compared | flags or a URL → a running server, and what it says of itself |
| `rows.py` | what is on the disk, and how a run goes on | results ↔ files |
| `summary.py` | figures with intervals, and their table | rows → `ArmSummary` |
| `predict.py` | what the simulator says of the same requests | rows, α and β → predicted p95 |
| `page.py` | the page and its figures | all of these → HTML |
| `command.py` | flags, and the parts one after the other | – |
"""

from __future__ import annotations

from eval.live.replay.command import add_arguments, run

__all__ = ["add_arguments", "run"]
