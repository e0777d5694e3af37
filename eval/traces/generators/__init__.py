"""Workloads that are made from parameters and a seed, a module each: a kind is a ``Workload``.

| base | what it moves on | kinds |
|---|---|---|
| `talk.py` | one conversation: its context, its clock, the request of each call | all below |
| `agent_loop.py` | an agent: calls of tools, then a user reads | `compaction`, `changing-system`, `subagents`, … |
| `chat_loop.py` | a chat: ask, read, ask again | `rewind`, `thinking`, `batch` |
| `mixed.py` | chats and agents in one trace | `day`, `shift` |

`synthetic` (the paper's model), `chat-mix`, `agents` and `figure1` are older and stand alone. To add a kind, write a
dataclass of parameters that says where its defaults come from, and a function from it to requests. Then add a line to
the list below (``workload.py`` has what a kind is).
"""

from __future__ import annotations

from eval.traces.generators.agents import AGENTS
from eval.traces.generators.batch import BATCH
from eval.traces.generators.changing_system import CHANGING_SYSTEM
from eval.traces.generators.chat_mix import CHAT_MIX
from eval.traces.generators.compaction import COMPACTION
from eval.traces.generators.day import DAY
from eval.traces.generators.figure1 import FIGURE1
from eval.traces.generators.parallel_tools import PARALLEL_TOOLS
from eval.traces.generators.rewind import REWIND
from eval.traces.generators.shift import SHIFT
from eval.traces.generators.subagents import SUBAGENTS
from eval.traces.generators.synthetic import SYNTHETIC
from eval.traces.generators.thinking import THINKING
from eval.traces.generators.workload import Workload

__all__ = ["GENERATORS", "Workload"]

_ALL = (
    *(SYNTHETIC, CHAT_MIX, AGENTS, FIGURE1),
    *(COMPACTION, REWIND, CHANGING_SYSTEM, PARALLEL_TOOLS, SUBAGENTS, THINKING, BATCH, DAY, SHIFT),
)

GENERATORS: dict[str, Workload] = {kind.name: kind for kind in _ALL}
"""By name, which may be followed by a colon and parameters."""
