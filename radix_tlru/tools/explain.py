"""``radix-tlru explain``: five lines of one request of a running server (:mod:`~radix_tlru.tools.explanation`)."""

from __future__ import annotations

import sys

import requests

from radix_tlru.config import FLAGS
from radix_tlru.tools.explanation import ROUTE, explanation_of, lines
from radix_tlru.tools.http import OF_ROUTER, ServerError, base_url, bearer, request

__all__ = ["explain"]


def explain(url: str, rid: str, api_key: str | None = None) -> int:
    """Print the lines of a request; returns an exit status: 0, or 2 after one line on standard error.

    Args:
        url: of the server; ``http://`` and ``/metrics`` may be left out.
        rid: of a request that the server has answered.
        api_key: of the server, if it asks for one.
    """
    try:
        for line in _ask(base_url(url), rid, api_key):
            print(line)
    except ServerError as error:
        print(f"radix-tlru: error: {error}", file=sys.stderr)
        return 2
    return 0


def _ask(base: str, rid: str, api_key: str | None) -> list[str]:
    where = f"{base}{ROUTE}"
    reply = request(base, ROUTE, params={"rid": rid}, auth=bearer(api_key))
    if reply.status_code == requests.codes.unauthorized:
        raise ServerError(f"{where}: the server wants its key (its --admin-api-key, if it has one); give --api-key")
    try:
        answer = reply.json()
    except requests.JSONDecodeError:
        answer = None
    if not reply.ok:
        said = answer.get("error") if isinstance(answer, dict) else None
        status = f"{where}: HTTP {reply.status_code}; start the server with {FLAGS['explain']}{OF_ROUTER}"
        raise ServerError(said if isinstance(said, str) else status)
    try:
        return [*lines(explanation_of(answer))]
    except (KeyError, TypeError, ValueError):
        raise ServerError(f"{where}: is no SGLang server that was started with {FLAGS['explain']}") from None
