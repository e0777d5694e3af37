"""Runs of SWE-agent (``.traj``) as rows of calls: what the model was asked at each step, or else the history.

Source: SWE-agent 1.1, ``agents.py`` (``get_trajectory_data``), ``types.py``. The ``query`` of a step is what the model
read: a history processor may have cut old results in it. Runs before 1.1 have their ``history`` alone. A run with
retries has ``attempts``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eval.traces.reading.bodies import are_messages

RUNS = {"trajectory_format", "trajectory", "instance_id"}
"""Fields of rows that are runs of an agent: conversations, even if the result of a tool is the last message."""

_LONGEST_S = 1e9  # no tool runs for 30 years
_FIELDS = {"attempts", "environment", "history", "info", "replay_config", "trajectory"}


def is_run(document: Mapping[str, Any]) -> bool:
    """Whether a document is a run of SWE-agent."""
    return document.keys() <= _FIELDS and any(_messages(each.get("history")) for each in _attempts(document))


def calls_of(document: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    """The rows of a run: one for each call, or one that is a whole conversation.

    Args:
        document: for which ``is_run``.
        name: of the run.
    """
    attempts = _attempts(document)
    for number, attempt in enumerate(attempts, start=1):
        session = name if len(attempts) == 1 else f"{name}/{number}"
        history = _messages(attempt.get("history"))
        # Where nobody could be asked any more, the query of a step is empty.
        steps = [each for each in _objects(attempt.get("trajectory")) if _messages(each.get("query"))]
        ran_s: Any = None  # how long the tool of the step before took
        for step, later in zip(steps, [*(each["query"] for each in steps), history][1:], strict=True):
            answer = {"message": _said(step, later)}
            delay = ran_s * 1000 if isinstance(ran_s, int | float) and 0 <= ran_s < _LONGEST_S else None
            yield {"session_id": session, "messages": step["query"], "response": answer, "delay": delay}
            ran_s = step.get("execution_time")
        if not steps:
            yield {"session_id": session, "messages": [_asked(each) for each in history], "trajectory": steps}


def _attempts(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return _objects(document.get("attempts")) or [document]


def _said(step: Mapping[str, Any], later: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The answer to a step: with its calls of tools only a later prompt has it, unless a retry left it out."""
    number = len(step["query"])
    if len(later) > number and later[number].get("role") == "assistant":
        return later[number]
    return {"role": "assistant", "content": step.get("response")}


def _asked(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message of a history; answers in a demonstration are part of the first prompt, and nobody gave them here."""
    return {**message, "role": "user"} if message.get("is_demo") else message


def _messages(value: Any) -> Sequence[Mapping[str, Any]]:
    return value if isinstance(value, list) and are_messages(value) else ()


def _objects(value: Any) -> Sequence[Mapping[str, Any]]:
    return value if isinstance(value, list) and all(isinstance(each, Mapping) for each in value) else ()
