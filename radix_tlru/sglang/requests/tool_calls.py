"""Which tokens begin a call of a tool, by the server's own parser (``--tool-call-parser``).

A model that was trained to call tools marks a call with a token of its own: ``<tool_call>``, ``[TOOL_CALLS]``. The
parser looks for it in the text of an answer. Here the parser is asked once, at the start, about each token that was
added to the vocabulary. A scheduler then only has to look for an id among those of an answer.

Some formats have no such token: a call is plain JSON, or a list of Python calls. Then the last tokens of answers have
to tell (:mod:`~radix_tlru.learning.endings`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from sglang.srt.function_call.function_call_parser import FunctionCallParser

from radix_tlru.sglang.support import resolved

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

__all__ = ["call_tokens"]

logger = logging.getLogger(__name__)


def call_tokens(server_args: ServerArgs, tokenizer: Any) -> tuple[int, ...]:
    """The ids of tokens that the server's parser takes for the beginning of a call; none where nobody can tell.

    Args:
        server_args: of the server. Which parser ``auto`` is, SGLang has found out by then.
        tokenizer: of the model; None: the server has none.
    """
    parser: str | None = resolved(server_args).tool_call_parser
    if parser is None or tokenizer is None:
        return ()
    try:
        calls = FunctionCallParser([], parser, tokenizer).detector.has_tool_call
        added: dict[str, int] = tokenizer.get_added_vocab()
        # Some parsers want the line to end behind it.
        return tuple(sorted(number for token, number in added.items() if calls(token) or calls(f"{token}\n")))
    except Exception as error:  # whatever a parser or a tokenizer does: without them a server learns a little later
        logger.warning("radix_tlru: --tool-call-parser %s cannot say what begins a call of a tool: %r", parser, error)
        return ()
