"""``radix-tlru warm``: prompts that conversations begin with are prefilled on a running server, and kept warm.

In come a URL and the prompts of a file (:mod:`~radix_tlru.tools.prompts`). The server itself turns them into tokens.
Each is then asked for one token of answer, which is a use like any other. A prompt that is asked for every minute stays
cached like one that a conversation begins with every minute. After a flush or new weights the next round restores it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import requests

from radix_tlru.config import ConfigError
from radix_tlru.tools.http import OF_ROUTER, ServerError, base_url, bearer, request
from radix_tlru.tools.prompts import Prompt, read_prompts

__all__ = ["SHARE", "Warmed", "Warmer", "warm"]

SHARE = 1 / 4
"""Of the pool, that warm prompts may fill: as much as the claims of clients."""

_PATIENCE_S = 600.0  # for an answer, until a first round is done
_LATER_PATIENCE_S = 60.0  # then: so long a server that is going down may wait for a prompt that it does not answer
_MOST_SAID = 1_000  # characters of what a server says is wrong

_Read = TypeVar("_Read")


class Warmed(NamedTuple):
    """A prompt that was asked for."""

    name: str
    tokens: int
    cached: int  # tokens of it that were found; where there are several replicas, on the one that had fewest


class _Ready(NamedTuple):
    """A prompt as it is asked for."""

    name: str
    body: dict[str, Any]
    tokens: int


class _Server(NamedTuple):
    """What a server says of itself that prompts have to fit; another one says something else."""

    pool: int  # of each replica, tokens
    longest: int  # request, tokens
    page_size: int
    replicas: int  # caches, each of which is to have the prompts
    start: list[Any]  # of which model, and how long that took: no two starts take as long


class Warmer:
    """Keeps prompts warm on a server.

    Args:
        url: of the server; ``http://`` and ``/metrics`` may be left out.
        prompts: at least one.
        api_key: of the server, if it has one.
        verify: as ``requests`` takes it, for a server with a certificate of its own.

    Raises:
        ServerError: the server does not answer, does not know an adapter, or cannot make tokens of a prompt; a prompt
            is too long for it; all of them are more than a quarter of its pool. No prompt was asked for by then.

    Attributes:
        pool: of each replica, tokens.
        tokens: of all prompts; what they share counts for each of them.
    """

    def __init__(
        self, url: str, prompts: Sequence[Prompt], api_key: str | None = None, verify: bool | str = True
    ) -> None:
        self._url = base_url(url)
        self._patience_s = _PATIENCE_S
        self._session = requests.Session()
        self._verify = verify  # given with each request, or an environment that has REQUESTS_CA_BUNDLE has its own way
        self._session.auth = bearer(api_key)
        self._prompts = prompts
        self._server: _Server | None = None
        self.prepare()

    def prepare(self) -> None:
        """Make the prompts ready for the server that is there now, unless they are.

        One that was started again may have another model. Of that the tokens of a prompt are others.

        Raises:
            ServerError: as the constructor does.
        """
        server = self._ask("server_info", _server_of)
        if server == self._server:
            return
        self._server = None  # until all are ready
        self.pool = server.pool
        self._check_adapters()
        self._ready: list[_Ready] = []
        self.tokens = 0
        for prompt in self._prompts:
            ready = _Ready(prompt.name, *self._body(prompt))
            if ready.tokens > server.longest:
                raise ServerError(f"{prompt.where}: {ready.tokens:,} tokens: must be at most {server.longest:,}")
            self._ready.append(ready)
            self.tokens += ready.tokens
            if self.tokens > SHARE * self.pool:
                allowed = f"must be at most {int(SHARE * self.pool):,}, {SHARE:.0%} of the pool"
                raise ServerError(f"{prompt.where}: {self.tokens:,} tokens of prompts up to here: {allowed}")
        self._replicas, self._page_size = server.replicas, server.page_size
        self._server, self._patience_s = server, _PATIENCE_S

    def warm(self, is_over: Callable[[], bool] = lambda: False) -> list[Warmed]:
        """Ask for each prompt, one after the other, on each replica.

        Args:
            is_over: once it is true, no further prompt is asked for.

        Raises:
            ServerError: the server does not answer as asked, within 600 s in its first round and 60 s in later ones.
        """
        wanted = takewhile(lambda _: not is_over(), self._ready)
        found = [Warmed(ready.name, ready.tokens, min(self._cached(ready.body))) for ready in wanted]
        self._patience_s = _LATER_PATIENCE_S
        return found

    def gone(self, found: Sequence[Warmed]) -> int:
        """Tokens that had to be prefilled again. The last page of a prompt always is, in part."""
        missing = (each.tokens - each.cached for each in found)
        return sum(tokens for tokens in missing if tokens > self._page_size)

    def _cached(self, body: dict[str, Any]) -> list[int]:
        ranks = [{"routed_dp_rank": rank} for rank in range(self._replicas)] if self._replicas > 1 else [{}]
        return [
            self._ask("generate", lambda told: int(told["meta_info"]["cached_tokens"]), {**body, **rank})
            for rank in ranks
        ]

    def _check_adapters(self) -> None:
        named = [prompt for prompt in self._prompts if prompt.lora_path is not None]
        if not named:
            return
        known = self._ask("v1/models", lambda told: {model["id"] for model in told["data"] if model.get("parent")})
        for prompt in named:
            if prompt.lora_path not in known:
                allowed = f"one of {', '.join(sorted(known))}" if known else "left out: the server has no adapters"
                raise ServerError(f"{prompt.where}: lora_path {prompt.lora_path}: must be {allowed}")

    def _body(self, prompt: Prompt) -> tuple[dict[str, Any], int]:
        """The request for a prompt, and its tokens."""
        if prompt.input_ids is not None:
            ids = prompt.input_ids
            self._check_vocabulary(ids, prompt.where)
        else:
            ids = self._tokens_of(prompt)
        options = {"lora_path": prompt.lora_path, "cache_salt": prompt.cache_salt}
        given = {field: value for field, value in options.items() if value is not None}
        return {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0.0}, **given}, len(ids)

    def _check_vocabulary(self, ids: list[int], where: str) -> None:
        """Ask something else of the greatest id: SGLang 0.5.23 dies of a prompt with one that the model has not."""
        asked = {"input_ids": ids[:1], "sampling_params": {"max_new_tokens": 0}, "token_ids_logprob": [max(ids)]}
        self._ask("generate", lambda told: told, asked, f"{where}: input_ids: ")

    def _tokens_of(self, prompt: Prompt) -> list[int]:
        """What the server makes of a prompt. What a chat template adds for the answer is no part of it."""
        asked: dict[str, Any] = {"prompt": prompt.text}
        if prompt.messages is not None:
            tools = {} if prompt.tools is None else {"tools": prompt.tools}
            asked = {"messages": prompt.messages, "add_generation_prompt": False, **tools}
        field = "text" if prompt.messages is None else "messages"
        return self._ask("v1/tokenize", lambda told: list(told["tokens"]), asked, f"{prompt.where}: {field}: ")

    def _ask(
        self, path: str, read: Callable[[Any], _Read], body: dict[str, Any] | None = None, about: str = ""
    ) -> _Read:
        """What ``read`` takes out of the server's answer; ``about``: what a refusal begins with."""
        url, patience_s = f"{self._url}/{path}", self._patience_s
        reply = request(self._url, f"/{path}", self._session, patience_s=patience_s, json=body, verify=self._verify)
        if reply.status_code == requests.codes.unauthorized:
            raise ServerError(f"{url}: the server wants its key; give --api-key")
        if reply.status_code == requests.codes.not_found and body is None:
            raise ServerError(f"{url}: not found{OF_ROUTER}")
        if not reply.ok:
            raise ServerError(f"{about}{url}: HTTP {reply.status_code}: {_message_of(reply)}")
        try:
            return read(reply.json())
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ServerError(f"{url}: is no SGLang server{OF_ROUTER}") from None


def _server_of(info: Mapping[str, Any]) -> _Server:
    return _Server(
        pool=int(info["max_total_num_tokens"]),
        longest=int(info["max_req_input_len"]),
        page_size=int(info["page_size"]),
        # Groups of data-parallel attention have a cache each. SGLang counted them as replicas once.
        replicas=int(info["dp_size"]) * int(info.get("attn_dp_size", 1)),
        start=[info.get(field) for field in ("model_path", "tokenizer_path", "startup_time")],
    )


def _message_of(reply: requests.Response) -> str:
    """What a server says is wrong, in one line."""
    try:
        said = reply.json()
        error = said.get("error") or said
        text = str(error.get("message") or error)
    except (ValueError, AttributeError):
        text = reply.text or reply.reason
    # Behind an empty line SGLang says where in its own code a field was found wrong.
    text = " ".join(text.strip().partition("\n\n")[0].split())
    return text if len(text) <= _MOST_SAID else f"{text[:_MOST_SAID]} …"


def warm(url: str, file: Path, *, every_s: float | None = None, api_key: str | None = None) -> int:
    """Warm the prompts of a file on a server, once or until the user interrupts; returns an exit status.

    Args:
        every_s: seconds from one round to the next; None: one round.

    Returns:
        0; or 2 if the first round could not be done, after one line on standard error that says why.
    """
    try:
        warmer = Warmer(url, read_prompts(file), api_key)
        _print(warmer.warm(), warmer)
    except (ConfigError, ServerError) as error:
        print(f"radix-tlru: error: {error}", file=sys.stderr)
        return 2
    try:
        while every_s is not None:
            time.sleep(every_s)
            print(_again(warmer), flush=True)
    except KeyboardInterrupt:
        pass
    return 0


def _again(warmer: Warmer) -> str:
    """What there is to say of a further round. A server that is restarted, or another, may answer the next one."""
    try:
        warmer.prepare()
        gone = warmer.gone(warmer.warm())
    except ServerError as error:
        return f"radix-tlru: error: {error}"
    return f"{gone:,} of {warmer.tokens:,} tokens were gone and are prefilled again"


def _print(found: Sequence[Warmed], warmer: Warmer) -> None:
    width = max(len(each.name) for each in found)
    print(f"{'prompt':{width}}  {'tokens':>9}  {'cached before':>13}")
    for each in found:
        print(f"{each.name:{width}}  {each.tokens:9,}  {each.cached:13,}")
    print(f"{warmer.tokens:,} tokens, {warmer.tokens / warmer.pool:.1%} of the pool", flush=True)
