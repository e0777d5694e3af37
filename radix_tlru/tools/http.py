"""Asking a server over HTTP: how its URL may be written, and what there is to say if nobody answers."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import requests
from urllib3.exceptions import ProtocolError

from radix_tlru.config import one_line

__all__ = ["OF_ROUTER", "NoServerError", "ServerError", "base_url", "bearer", "request", "without_password"]

OF_ROUTER = "; of a router, give the URL of each worker"
"""What may be the matter where a path is not known."""

_PATIENCE_S = 10.0


class ServerError(RuntimeError):
    """A server cannot be asked, or does not do what it was asked for; the message is one line, without a password."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(without_password(message)))


class NoServerError(ServerError):
    """Nobody takes the connection, or answers: no server is there, or none yet."""


class _Bearer(requests.auth.AuthBase):
    """A key that is sent whatever a .netrc or the URL has for that host, as a header alone would not be."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __call__(self, prepared: requests.PreparedRequest) -> requests.PreparedRequest:
        prepared.headers["Authorization"] = f"Bearer {self._key}"
        return prepared


def without_password(text: str) -> str:
    """The text without what a URL in it has before its host: logs keep messages.

    >>> without_password("no server answers at http://me:secret@host:1")
    'no server answers at http://host:1'
    """
    return re.sub(r"://[^/?#\s]*@", "://", text)


def base_url(url: str) -> str:
    """The URL of a server, with ``http://`` and without ``/metrics``.

    Raises:
        ServerError: it is none of a server: no host, a port that is none, another scheme.
    """
    full = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(full)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        usable = usable and not parts.query and not parts.fragment  # a path goes behind the URL
    except ValueError:  # a port beyond 65535, brackets without an address
        usable = False
    if not usable or any(map(str.isspace, url)):
        raise ServerError(f"URL {url or repr(url)}: must be http://HOST:PORT or https://HOST:PORT")
    return full.rstrip("/").removesuffix("/metrics")


def bearer(api_key: str | None) -> requests.auth.AuthBase | None:
    """What a request is given as ``auth`` for a server with that key; None: it has none.

    Raises:
        ServerError: no header can have that key. The message leaves the key out: logs keep messages.
    """
    if api_key is None:
        return None
    if not api_key.isprintable() or any(ord(character) > 0xFF for character in api_key):
        raise ServerError("--api-key: must be printable characters of latin-1, as it is sent in a header")
    return _Bearer(api_key)


def request(
    base: str,
    path: str,
    session: requests.Session | None = None,
    *,
    patience_s: float = _PATIENCE_S,
    json: Any = None,
    **options: Any,
) -> requests.Response:
    """What a server answers at a path, whatever its status.

    Args:
        base: its URL, as of :func:`base_url`.
        path: with a slash in front.
        session: to ask through, for who asks again and again; by default a connection is made and closed.
        patience_s: seconds that it has to answer.
        json: the body of a POST; None: it is a GET.
        options: others of ``requests.request``.

    Raises:
        ServerError: nobody answers.
    """
    method = "GET" if json is None else "POST"
    options = {"allow_redirects": json is None, **options}  # a POST that is sent elsewhere would become a GET there
    try:
        reply = (session or requests).request(method, f"{base}{path}", json=json, timeout=patience_s, **options)
    except requests.exceptions.ProxyError as error:
        told = "a proxy of the environment does not pass this on; NO_PROXY names hosts that are asked without it"
        raise ServerError(f"{base}: {error}: {told}") from None
    except requests.exceptions.SSLError as error:
        if "CERTIFICATE" not in str(error):
            raise ServerError(f"{base}: {error}; of a server without TLS, give http://") from None
        raise ServerError(f"{base}: {error}; REQUESTS_CA_BUNDLE names a file of certificates to trust") from None
    except requests.ConnectionError as error:
        told = ""
        if base.startswith("http:") and any(isinstance(each, ProtocolError) for each in error.args):
            told = ": the connection is closed; of a server with TLS, give https://"
        raise NoServerError(f"no server answers at {base}{told}") from None
    except (requests.RequestException, ValueError) as error:  # a host without a name: a..b
        raise ServerError(f"{base}{path}: {error}") from None
    if reply.is_redirect:
        raise ServerError(f"{base}{path}: is sent on to {reply.headers['Location']}; give the URL that is meant")
    return reply
