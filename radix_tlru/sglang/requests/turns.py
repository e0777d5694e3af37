"""From SGLang's record of a request that was served to the turn that the learner is told of."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.managers.utils import is_health_check_generate_req
from xxhash import xxh3_64_intdigest

from radix_tlru.learning.records import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang.srt.mem_cache.radix_cache import RadixKey

    from radix_tlru.hints.schema import Hints
    from radix_tlru.learning.prefix_index import Fingerprint

__all__ = ["Prefills", "fingerprint_of", "is_health_check", "is_turn", "namespace_of", "turn_of"]

_TOKEN = array("q").itemsize
_MOST_PREFILLS = 1_024  # remembered


def is_health_check(req: Any) -> bool:
    """Whether SGLang itself asks, to see that it can answer. An id need not be a string, as those of its checks are."""
    return isinstance(req.rid, str) and bool(is_health_check_generate_req(req))


def is_turn(req: Any) -> bool:
    """Whether somebody asked for an answer, and SGLang did not refuse.

    Before n answers to one prompt it asks for no token, to have the prompt cached. It replaces the prompt of a request
    that it refuses by a single token. One that it ends later, because of a timeout or a grammar, was prefilled.
    """
    reason = req.finished_reason
    is_aborted = isinstance(reason, FINISH_ABORT) and reason.status_code is not None  # None: the client left
    is_refused = is_aborted and len(req.origin_input_ids) == 1
    return req.sampling_params.max_new_tokens != 0 and not is_refused and not is_health_check(req)


class Prefills:
    """What was prefilled of prompts by requests for no token, which SGLang asks before n answers to one prompt.

    Such a request is a copy of the n that follow, with their stamp, and they find the prompt cached. So what it
    prefilled is of the first of them that is served. A text that is scored has none, so the oldest are forgotten.
    """

    def __init__(self) -> None:
        self._lengths: dict[float | None, int] = {}  # tokens, by stamp, the oldest first

    def add(self, req: Any, stamp: float | None) -> None:
        """A request for no token was served."""
        if stamp is not None:
            self._lengths[stamp] = max(len(req.origin_input_ids) - req.cached_tokens, 0)
        if len(self._lengths) > _MOST_PREFILLS:
            del self._lengths[next(iter(self._lengths))]

    def take(self, stamp: float | None) -> int:
        """Tokens that were prefilled for the requests with that stamp; 0 when it is asked again."""
        return self._lengths.pop(stamp, 0)


def turn_of(
    req: Any,
    key: RadixKey,
    stamp: float,
    hints: Hints | None = None,
    call_tokens: Sequence[int] = (),
    prefilled_len: int = 0,
) -> Turn:
    """The turn that ``req`` was, with the ``key`` of what was cached of it in the end; ``stamp`` in s.

    Args:
        call_tokens: ids that begin a call of a tool (:mod:`~radix_tlru.sglang.requests.tool_calls`).
        prefilled_len: tokens of the prompt that were prefilled just before (:class:`Prefills`).
    """
    prompt_len = len(req.origin_input_ids)
    answer = req.output_ids_through_stop  # a step of speculative decoding may go on after the stop
    return Turn(
        stamp=stamp,
        prompt_len=prompt_len,
        answer_len=len(answer),
        context_len=len(key),
        cached_len=min(req.cached_tokens, prompt_len - prefilled_len),  # more, if it was retracted and began anew
        fingerprint=fingerprint_of(key),
        hints=hints,
        prompt_ids=req.origin_input_ids,
        answer_ids=answer,
        # As far as a reasoning parser tells, which counts what is after the stop, too.
        thought_len=min(req.reasoning_tokens, len(answer)),
        session=req.session_id or (req.session and req.session.session_id),
        finish=_finish_of(req, call_tokens),
        namespace=namespace_of(key),
    )


def _finish_of(req: Any, call_tokens: Sequence[int]) -> str | None:
    """OpenAI's ``finish_reason``; None: unknown. What SGLang's scheduler calls a stop may be a call of a tool."""
    kind = None if req.finished_reason is None else req.finished_reason.to_json()["type"]
    if kind != "stop" or not call_tokens:
        return "length" if kind == "length" else None
    ids = np.asarray(req.output_ids_through_stop)
    return "tool_calls" if any((ids == token).any() for token in call_tokens) else "stop"


def fingerprint_of(key: RadixKey) -> Fingerprint:
    """Hashes of a context, in its namespace: equal where the first tokens are, on every rank."""
    ids = key.token_ids
    tokens = memoryview(ids if isinstance(ids, array) else array("q", ids)).cast("B")
    namespace = namespace_of(key)
    return lambda start, end, above: xxh3_64_intdigest(tokens[start * _TOKEN : end * _TOKEN], above or namespace)


def namespace_of(key: RadixKey) -> int:
    """A hash of what a context is cached under, its adapter and its salt; 0: nothing."""
    names = key.extra_key, key.cache_salt
    return 0 if names == (None, None) else xxh3_64_intdigest(repr(names).encode())
