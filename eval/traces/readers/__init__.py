"""The formats of files and data sets that can be read, a module each: a format is a ``Reader``.

In: records of a source (``reading/files.py``). Out: requests, in any order, and notes of what was done to the data.
A reader never looks at policies, capacities or flags. To add one: write a module with a ``Reader``, put it into the
list below, and write a small file of the format into a test. The first in the list that knows a record reads the file.
"""

from __future__ import annotations

from eval.traces.readers.agent_sessions import AGENT_SESSIONS
from eval.traces.readers.aiperf_artifacts import AIPERF_ARTIFACTS
from eval.traces.readers.aiperf_raw import AIPERF_RAW
from eval.traces.readers.aiperf_rows import AIPERF_ROWS
from eval.traces.readers.aiperf_turns import AIPERF_TURNS
from eval.traces.readers.azure import AZURE
from eval.traces.readers.bailian import BAILIAN
from eval.traces.readers.bench_serving import BENCH_SERVING
from eval.traces.readers.burstgpt import BURSTGPT
from eval.traces.readers.claude_code import CLAUDE_CODE
from eval.traces.readers.codex import CODEX
from eval.traces.readers.dynamo import DYNAMO
from eval.traces.readers.dynamo_agentic import DYNAMO_AGENTIC
from eval.traces.readers.lmcache import LMCACHE
from eval.traces.readers.mooncake import MOONCAKE
from eval.traces.readers.openai_messages import OPENAI_MESSAGES
from eval.traces.readers.sglang_log import SGLANG_LOG
from eval.traces.readers.sharegpt import LMSYS, SHAREGPT
from eval.traces.readers.wildchat import WILDCHAT
from eval.traces.reading.reader import Reader

_ALL = (
    *(BAILIAN, MOONCAKE, WILDCHAT, SHAREGPT, LMSYS, AGENT_SESSIONS, DYNAMO_AGENTIC, AIPERF_ROWS, LMCACHE, BURSTGPT),
    AZURE,
    *(CLAUDE_CODE, CODEX, DYNAMO, AIPERF_ARTIFACTS, AIPERF_RAW, SGLANG_LOG, BENCH_SERVING, OPENAI_MESSAGES),
    AIPERF_TURNS,
)

READERS: dict[str, Reader] = {reader.name: reader for reader in _ALL}
"""By the name of the format."""
