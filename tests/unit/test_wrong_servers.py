"""`radix-tlru explain` and `warm` at a server that answers otherwise than ours, or not in time: in one line."""

from __future__ import annotations

import functools
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import certifi
import pytest
import trustme

from radix_tlru.cli import main
from radix_tlru.sglang import warming
from radix_tlru.tools import warm
from radix_tlru.tools.explanation import Explanation
from radix_tlru.tools.http import OF_ROUTER, ServerError
from radix_tlru.tools.prompts import Prompt
from tests.helpers.answering import HTML, INFO, SERVED, TOKENS, answering

NO_EXPLANATION = "is no SGLang server that was started with --tlru-explain"


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (200, "{}", NO_EXPLANATION),
        (200, "[]", NO_EXPLANATION),
        (200, "null", NO_EXPLANATION),
        (200, '{"eviction": null, "rid": "r"}', NO_EXPLANATION),
        (200, json.dumps(dict.fromkeys(Explanation.__slots__)), NO_EXPLANATION),
        (200, HTML, NO_EXPLANATION),
        (404, HTML, f"HTTP 404; start the server with --tlru-explain{OF_ROUTER}"),
        (500, HTML, f"HTTP 500; start the server with --tlru-explain{OF_ROUTER}"),
        (500, '{"error": {"message": "m"}}', f"HTTP 500; start the server with --tlru-explain{OF_ROUTER}"),
        (401, HTML, "the server wants its key (its --admin-api-key, if it has one); give --api-key"),
    ],
)
def test_what_is_no_explanation_is_told_by_its_status_first(
    status: int, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering({"/tlru/explain": (status, text)}) as url:
        assert main(["explain", url, "r"]) == 2
    assert capsys.readouterr().err == f"radix-tlru: error: {url}/tlru/explain: {said}\n"


@pytest.mark.parametrize(
    ("answers", "path"),
    [
        ({"/server_info": (200, "{}")}, "server_info"),
        ({"/server_info": (200, HTML)}, "server_info"),
        ({"/v1/tokenize": (200, "{}")}, "v1/tokenize"),
        ({"/v1/tokenize": (200, '{"tokens": null}')}, "v1/tokenize"),
        ({"/v1/tokenize": TOKENS, "/generate": (200, "[]")}, "generate"),
    ],
)
def test_a_server_that_warms_nothing_is_named_with_what_it_was_asked(
    answers: Mapping[str, tuple[int, str]], path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "Once"}\n')
    with answering({"/server_info": (200, json.dumps(INFO)), **answers}) as url:
        assert main(["warm", url, str(file)]) == 2
    said = "is no SGLang server; of a router, give the URL of each worker"
    assert capsys.readouterr().err == f"radix-tlru: error: {url}/{path}: {said}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            {"message": "2 validation errors:\n  'role' must be one of 'system', 'user'\n  and\n\n  File 'a.py'"},
            "2 validation errors: 'role' must be one of 'system', 'user' and",
        ),
        ({"error": {"message": f"{'a' * 900} and then"}}, f"{'a' * 900} and then"),
        ({"error": {"message": "a" * 1_001}}, f"{'a' * 1_000} …"),
    ],
    ids=["SGLang's", "long", "longer"],
)
def test_what_a_server_refuses_a_prompt_for_is_told_in_one_line(
    text: Mapping[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "Once"}\n')
    with answering({"/server_info": (200, json.dumps(INFO)), "/v1/tokenize": (400, json.dumps(text))}) as url:
        assert main(["warm", url, str(file)]) == 2
    line = f"radix-tlru: error: {file}, row 1: text: {url}/v1/tokenize: HTTP 400: {said}\n"
    assert capsys.readouterr().err == line


def test_a_command_that_is_interrupted_ends_without_a_traceback(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "Once"}\n')
    heard: list[tuple[str, bytes]] = []
    interruptible = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    with answering({"/server_info": (200, json.dumps(INFO))}, takes_s=2.0, heard=heard) as url:
        command = [sys.executable, "-m", "radix_tlru.cli", "warm", url, str(file)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=interruptible) as warming:
            while not heard:
                assert warming.poll() is None
                time.sleep(0.01)
            warming.send_signal(signal.SIGINT)
            assert warming.communicate() == (None, "")
    assert warming.returncode == 128 + signal.SIGINT


EACH_COMMAND = pytest.mark.parametrize("command", [("top",), ("explain", "r"), ("warm", "prompts.jsonl")], ids=str)
"""Commands that ask a server, without its URL."""


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of prompts where the command runs."""
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text('{"text": "Once"}\n')


@pytest.mark.parametrize(
    ("command", "path"),
    [
        (("top",), "/metrics"),
        (("explain", "r"), "/tlru/explain?rid=r"),
        (("warm", "prompts.jsonl"), "/server_info"),
    ],
    ids=str,
)
@pytest.mark.parametrize("written", ["{}", "{}/", "{}/metrics", "{}/metrics/"])
@pytest.mark.usefixtures("prompts")
def test_each_command_takes_a_url_as_the_others_do(command: tuple[str, ...], path: str, written: str) -> None:
    name, *others = command
    heard: list[tuple[str, bytes]] = []
    with answering({}, heard=heard) as url:
        assert main([name, written.format(url.removeprefix("http://")), *others]) == 2
    assert [asked for asked, _ in heard] == [path]


@EACH_COMMAND
@pytest.mark.usefixtures("prompts")
@pytest.mark.parametrize(
    "url",
    [
        *("", "http://", "https:///metrics", "ftp://a:1", "a b", "http://a:99999", "http://a:0", "http://[1"),
        *("http://a:1/?token=b", "a:1#b"),
    ],
)
def test_each_command_refuses_what_is_no_url_of_a_server(
    url: str, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *others = command
    assert main([name, url, *others]) == 2
    said = f"radix-tlru: error: URL {url or repr(url)}: must be http://HOST:PORT or https://HOST:PORT\n"
    assert capsys.readouterr().err == said


@EACH_COMMAND
@pytest.mark.usefixtures("prompts")
@pytest.mark.parametrize("key", ["schlüssel€", "line\nbreak"])
def test_a_key_that_no_header_can_have_is_refused_and_not_printed(
    key: str, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *others = command
    assert main([name, "127.0.0.1:9", *others, "--api-key", key]) == 2
    said = "radix-tlru: error: --api-key: must be printable characters of latin-1, as it is sent in a header\n"
    assert capsys.readouterr().err == said


def test_a_request_without_an_id_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", "127.0.0.1:9", ""])
    assert ended.value.code == 2
    assert "argument RID: '': must be the id of a request" in capsys.readouterr().err


@EACH_COMMAND
@pytest.mark.usefixtures("prompts")
def test_who_gives_the_url_of_a_router_is_told_to_give_a_workers(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """SGLang's router answers 404 wherever these commands ask."""
    name, *others = command
    with answering({}) as url:
        assert main([name, url, *others]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"radix-tlru: error: {url}/")
    assert error.endswith(f"{OF_ROUTER}\n")
    assert error.count("\n") == 1


def test_once_prompts_were_warm_a_server_has_less_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is going down takes a prompt and never answers it; it waits for as long as its client does."""
    monkeypatch.setattr(warm, "_LATER_PATIENCE_S", 0.05)
    answers = {"/server_info": (200, json.dumps(INFO)), "/v1/tokenize": TOKENS, "/generate": SERVED}
    with answering(answers, takes_s=0.5) as url:
        warmer = warm.Warmer(url, [Prompt("row 1", "once", text="Once")])
        assert warmer.warm() == [warm.Warmed("once", 2, 0)]
        with pytest.raises(ServerError, match=r"/generate: .*timed out"):
            warmer.warm()


def test_a_server_that_takes_no_connections_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--skip-server-warmup` SGLang says that it is up just before it is."""
    answers, begins = {"/server_info": (200, json.dumps(INFO)), "/v1/tokenize": TOKENS}, threading.Event()
    prompts = [Prompt("row 1", "once", text="Once")]
    asked_again: list[float] = []

    def waited(seconds: float) -> None:
        asked_again.append(seconds)
        begins.set()

    monkeypatch.setattr(warming, "time", SimpleNamespace(monotonic=time.monotonic, sleep=waited))
    with answering(answers, begins=begins) as url:
        assert warming.warmer_of(url, prompts).tokens == 2
    assert asked_again
    monkeypatch.setattr(warming, "_START_S", 0.0)
    with pytest.raises(ServerError, match=f"^no server answers at {url}$"):
        warming.warmer_of(url, prompts)


@pytest.mark.parametrize(("replicas", "groups"), [(3, None), (3, 1), (1, 3)])
def test_each_replica_is_asked_and_each_group_of_data_parallel_attention(replicas: int, groups: int | None) -> None:
    """SGLang 0.5.21 has no count of groups, as it counts them as replicas."""
    info = {**INFO, "dp_size": replicas, **({} if groups is None else {"attn_dp_size": groups})}
    heard: list[tuple[str, bytes]] = []
    answers = {"/server_info": (200, json.dumps(info)), "/v1/tokenize": TOKENS, "/generate": SERVED}
    with answering(answers, heard=heard) as url:
        warm.Warmer(url, [Prompt("row 1", "once", text="Once")]).warm()
    asked = [json.loads(body)["routed_dp_rank"] for path, body in heard if path == "/generate"]
    assert asked == [0, 1, 2]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of an authority that nobody knows, and of a server of its, with the key."""
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "certificate.pem", folder / "key.pem"
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(files[0])
    server.private_key_and_cert_chain_pem.write_to_path(files[1])
    return files


@EACH_COMMAND
@pytest.mark.usefixtures("prompts")
def test_a_server_whose_certificate_is_not_trusted_is_not_said_to_be_missing(
    command: tuple[str, ...],
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, *others = command
    with answering({}, certificate=certificate) as url:
        assert main([name, url, *others]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"radix-tlru: error: {url}: ")
        assert "CERTIFICATE_VERIFY_FAILED" in error
        assert error.endswith("; REQUESTS_CA_BUNDLE names a file of certificates to trust\n")
        assert error.count("\n") == 1
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate[0]))
        assert main([name, url, *others]) == 2
        assert re.search("not found|HTTP 404", capsys.readouterr().err), "it has answered"


@EACH_COMMAND
@pytest.mark.usefixtures("prompts")
def test_who_asks_with_tls_where_there_is_none_or_without_where_there_is_is_told_so(
    command: tuple[str, ...], certificate: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *others = command
    with answering({}) as url:
        assert main([name, url.replace("http:", "https:"), *others]) == 2
    plain = capsys.readouterr().err
    assert plain.endswith("; of a server without TLS, give http://\n")
    assert "REQUESTS_CA_BUNDLE" not in plain
    with answering({}, certificate=certificate) as url:
        url = url.replace("https:", "http:")
        assert main([name, url, *others]) == 2
    said = f"no server answers at {url}: the connection is closed; of a server with TLS, give https://"
    assert capsys.readouterr().err == f"radix-tlru: error: {said}\n"


@EACH_COMMAND
@pytest.mark.usefixtures("prompts")
def test_a_proxy_that_passes_nothing_on_is_not_said_to_be_a_missing_server(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *others = command
    for variable in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with answering({}) as url:
        assert main([name, url, *others]) == 2
        told = "a proxy of the environment does not pass this on; NO_PROXY names hosts that are asked without it\n"
        error = capsys.readouterr().err
        assert error.startswith(f"radix-tlru: error: {url}: ")
        assert error.endswith(told)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert main([name, url, *others]) == 2
        assert re.search("not found|HTTP 404", capsys.readouterr().err), "it has answered"


@EACH_COMMAND
@pytest.mark.usefixtures("prompts")
def test_a_key_is_sent_whatever_a_netrc_or_the_url_has(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *others = command
    (tmp_path / "netrc").write_text("default login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with answering({}, key="sesame") as url:
        for given in (url, url.replace("://", "://me:secret@")):
            assert main([name, given, *others, "--api-key", "sesame"]) == 2
            assert re.search("not found|HTTP 404", capsys.readouterr().err), "it takes the key"


@EACH_COMMAND
@pytest.mark.usefixtures("prompts")
def test_no_message_has_the_password_of_a_url(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    name, *others = command
    with answering({}) as url:
        host = url.removeprefix("http://")
        for written in (f"http://me:secret@{host}", f"me:secret@{host}", "me:secret@127.0.0.1:9"):
            assert main([name, written, *others]) == 2
            error = capsys.readouterr().err
            assert "secret" not in error
            assert "me" not in error.split("http://")[1].split("/")[0]


def test_a_server_that_sends_prompts_on_is_not_asked_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As what is before a server does that wants TLS. A POST that is sent on is a GET there."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "Once"}\n')
    heard: list[tuple[str, bytes]] = []
    answers = {"/server_info": (200, json.dumps(INFO)), "/v1/tokenize": (301, "/elsewhere")}
    with answering(answers, heard=heard) as url:
        assert main(["warm", url, str(file)]) == 2
    said = f"{url}/v1/tokenize: is sent on to /elsewhere; give the URL that is meant"
    assert capsys.readouterr().err == f"radix-tlru: error: {said}\n"
    assert [path for path, _ in heard] == ["/server_info", "/v1/tokenize"]


def test_a_server_warms_itself_by_its_own_certificate(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang says for its own requests what to verify: a file of --ssl-ca-certs, or nothing."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())
    answers = {"/server_info": (200, json.dumps(INFO)), "/v1/tokenize": TOKENS, "/generate": SERVED}
    with answering(answers, certificate=certificate) as url:
        for verify in (False, str(certificate[0])):
            warmer = warm.Warmer(url, [Prompt("row 1", "once", text="Once")], verify=verify)
            assert warmer.warm() == [warm.Warmed("once", 2, 0)]
