"""How a server is asked for an explanation, and how a cache hears of who needs room (``--tlru-explain``).

A question is ``GET /tlru/explain?rid=…``, a route of SGLang's own HTTP server. An answer names requests of others, so
the route asks for the operator's key (``--admin-api-key``) if there is one, else for ``--api-key``. A question travels
to the schedulers as ``/server_info`` does, in a ``GetInternalStateReq``, whose ``rid`` nobody else uses. Metrics have
no place for single requests. ``/server_info`` takes no question, so it would have to list every request.

What lru would have had of a request that was served just now is not known yet. Then the route asks again, as a
scheduler does a few steps of it for each question, and does not do all of them while its requests wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from operator import itemgetter
from typing import Any

from radix_tlru.config import FLAGS
from radix_tlru.sglang.explainer import MOST_REQUESTS, decode_need, prefill_need
from radix_tlru.sglang.hooks import hook
from radix_tlru.sglang.releases import ANSWERS_QUESTIONS
from radix_tlru.tools.explanation import ROUTE

__all__ = ["HOOKED", "add_route", "answer_question", "install", "newest", "room_for_decode", "room_for_prefill"]

_BATCH = "sglang.srt.managers.schedule_batch.ScheduleBatch"
_STATE = f"{ANSWERS_QUESTIONS}.SchedulerInternalStateController"

HOOKED = (
    f"{_STATE}.get_internal_state",
    f"{_BATCH}.prepare_for_extend",
    f"{_BATCH}.check_decode_mem",
    f"{_BATCH}.prepare_for_decode",
)
"""Functions of SGLang that are hooked, in a scheduler process. Those of ``ScheduleBatch`` make room for a batch. For a
step of decode the third mostly does, as it asks whether there is enough. The fourth does if more is taken."""

_QUESTION = "radix_tlru explain "
"""What a ``rid`` begins with that is a question."""

_ASK_EVERY_S = 0.02
_PATIENCE_S = 5.0  # then an answer is given as it is: half of what `radix-tlru explain` waits for


def install() -> None:
    """Put the hooks in place, in a scheduler process.

    Raises:
        ConfigError: this SGLang does not take them.
    """
    without = f"{FLAGS['explain']}: requests cannot be explained"
    hook(HOOKED[0], answer_question, without, "around")
    hook(HOOKED[1], room_for_prefill, without, "around")
    hook(HOOKED[2], room_for_decode, without, "around")
    hook(HOOKED[3], room_for_decode, without, "around")


def room_for_prefill(original: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Around what makes room for a batch of prefills: it needs what is evicted meanwhile."""
    return _needing(prefill_need(batch), original, batch, *args, **kwargs)


def room_for_decode(original: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Around what makes room for the next tokens of a batch, whose ``forward_mode`` may yet be that of its prefill."""
    return _needing(decode_need(batch), original, batch, *args, **kwargs)


def _needing(need: Callable[[], str], original: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
    explainer = getattr(getattr(batch.tree_cache, "tail", None), "explainer", None)
    if explainer is None:
        return original(batch, *args, **kwargs)
    explainer.needed_for = cache(need)  # all victims of a call make room for the same
    try:
        return original(batch, *args, **kwargs)
    finally:
        explainer.needed_for = None


def answer_question(original: Callable[..., Any], controller: Any, asked: Any) -> Any:
    """Around ``get_internal_state``: a question is answered by the explanation alone, as a dictionary, or nothing."""
    if asked.rid is None or not asked.rid.startswith(_QUESTION):
        return original(controller, asked)
    from sglang.srt.managers.io_struct import GetInternalStateReqOutput

    explained = controller.scheduler.tree_cache.tail.explainer.explanation(asked.rid.removeprefix(_QUESTION))
    return GetInternalStateReqOutput(internal_state={} if explained is None else asdict(explained))


def newest(explanations: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """What is told of an id that replicas know: of the request that was done last, as each of them keeps it, too."""
    return max(explanations, key=itemgetter("finished_at"), default=None)


def add_route() -> None:
    """Have this process's HTTP server take questions, if it runs one; once."""
    from sglang.srt.entrypoints import http_server
    from sglang.srt.utils.auth import AuthLevel, auth_level

    if not any(getattr(route, "path", None) == ROUTE for route in http_server.app.routes):
        http_server.app.get(ROUTE)(auth_level(AuthLevel.ADMIN_OPTIONAL)(_explain))


async def _explain(rid: str) -> Any:
    """The explanation of a request; 404 if none of the replicas knows of it."""
    from fastapi.responses import JSONResponse
    from sglang.srt.entrypoints.http_server import get_global_state
    from sglang.srt.managers.io_struct import GetInternalStateReq

    manager = get_global_state().tokenizer_manager
    manager.auto_create_handle_loop()
    until = time.monotonic() + _PATIENCE_S
    while True:
        answers = await manager.get_internal_state_communicator(GetInternalStateReq(rid=_QUESTION + rid))
        found = newest([answer.internal_state for answer in answers if answer.internal_state])
        if found is None:
            error = f"request {rid}: is not among the last {MOST_REQUESTS:,} that were answered and cached"
            return JSONResponse({"error": error}, status_code=404)
        if found["lru_cached"] is not None or time.monotonic() > until:
            return JSONResponse(found)
        await asyncio.sleep(_ASK_EVERY_S)
