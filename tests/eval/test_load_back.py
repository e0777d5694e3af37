"""`python -m eval load-back`: two tiers, and what is taken from the lower one before it is asked for."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path as FilePath

import pytest

from eval.__main__ import main
from eval.caches.policies import simulated_cache
from eval.studies import load_back
from eval.studies.load_back import serve
from eval.traces.request import Path, Request
from tests.helpers.trace_files import write_lines

SIZES = Namespace(capacity=300, host=600, threshold=100, page_size=1)


def request(number: int, chat: int, turn: int) -> Request:
    """A turn of a chat that adds 100 tokens to it."""
    return asked(number, [100 * chat + n for n in range(turn)])


def asked(number: int, units: Sequence[int], tokens: int = 100) -> Request:
    """A prompt of these units of so many tokens each."""
    path = Path(tuple(units), tuple(tokens * (n + 1) for n in range(len(units))))
    return Request(60.0 * number, None, path, path, len(path), 0)


TURNS = [request(number, chat, turn) for number, (chat, turn) in enumerate([(1, 2), (2, 2), (3, 1), (1, 3), (2, 3)])]


@pytest.mark.parametrize(
    ("loads_back", "on_device", "ahead"), [(False, [0, 0, 0, 100, 0], 0), (True, [0, 0, 0, 200, 200], 300)]
)
def test_who_knows_the_future_loads_back_what_comes_next(
    loads_back: bool, on_device: list[int], ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_back, "LOOKS_EVERY", 1)
    served = serve(TURNS, "belady", loads_back, SIZES)
    assert served.cached == [0, 0, 0, 200, 200], "the host holds all of both"
    assert served.on_device == on_device
    assert served.ahead == ahead


@pytest.mark.parametrize(
    ("trace", "on_device", "ahead"),
    [
        # After the third request A is used in 2, and C, which would go for it, in 4 requests: twice as late.
        ("ABCBADC", [0, 0, 0, 100, 0, 0, 100], 0),
        # In 2 and in 5. C is loaded again once A is not needed any more.
        ("ABCBADEC", [0, 0, 0, 100, 100, 0, 0, 100], 200),
    ],
)
def test_what_is_loaded_back_is_worth_more_than_twice_what_goes_for_it(
    trace: str, on_device: list[int], ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_back, "LOOKS_EVERY", 2)  # after the first, the third, the fifth
    sizes = Namespace(**{**vars(SIZES), "capacity": 200})
    served = serve([asked(number, [ord(name)]) for number, name in enumerate(trace)], "belady", True, sizes)
    assert (served.on_device, served.ahead) == (on_device, ahead)


# Chats of two units, A1 and so on, that begin alike: unit 0. The last one goes on with the first.
ALIKE = [asked(number, units) for number, units in enumerate([[0, 1], [0, 2], [3, 4], [0, 1, 5]])]


def test_a_prefix_that_another_chat_shares_does_not_stand_for_all_that_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_back, "LOOKS_EVERY", 1)
    assert serve(ALIKE, "belady", False, SIZES).on_device == [0, 100, 0, 100]
    assert serve(ALIKE, "belady", True, SIZES) == ([0, 100, 0, 200], [0, 100, 0, 200], 100)


def test_only_what_is_used_again_is_loaded_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_back, "LOOKS_EVERY", 1)
    requests = [asked(number, units) for number, units in enumerate([[0, 1], [2, 3, 4], [0, 5]])]
    assert serve(requests, "belady", True, SIZES) == ([0, 0, 100], [0, 0, 100], 100)


def test_what_the_host_has_lost_is_not_loaded_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_back, "LOOKS_EVERY", 1)
    served = serve(TURNS, "belady", True, Namespace(**{**vars(SIZES), "host": SIZES.capacity}))
    assert served == ([0, 0, 0, 100, 0], [0, 0, 0, 100, 0], 0)


def test_a_wait_is_what_is_prefilled_and_the_cost_of_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_back, "LOOKS_EVERY", 1)
    # Prompts of 200, 200, 100, 300 and 300 tokens, of which the last two find 200 in either tier, 100 and 0 on the
    # device: waits of 200, 200, 100, 100 + 0.5 · 100 and 100 + 0.5 · 200. All of it loaded ahead: of 200, 200 and 100s.
    sizes = {**vars(SIZES), "threshold": 300, "host_cost": 0.5}
    columns = [list(column.cells) for column in load_back.compare(TURNS, Namespace(**sizes)).columns]
    assert [column[2] for column in columns] == ["belady", "on demand", "140", "60", "180", "0", "200", "200", "170"]
    assert [column[3] for column in columns] == [
        *("belady", "what is forecast", "140", "0", "0", "60"),
        *("-50.0%", "+0.0%", "-17.6%"),  # 100 of 200, 200 of 200, 140 of 170
    ]


def test_of_less_than_a_page_nothing_is_known() -> None:
    cache = simulated_cache("etlru", 300, threshold=300, page_size=16)
    long, short = asked(0, [1], 32), asked(1, [2], 15)
    for each in (long, short):
        cache.request(each)
    assert cache.known_of(long.context).context_len == 32
    assert cache.known_of(short.context) is None


def test_what_was_loaded_back_is_as_old_as_it_was() -> None:
    cache = simulated_cache("lru", 300, threshold=100)
    for each in TURNS[:3]:
        cache.request(each)
    assert cache.held_of(TURNS[0].context) == 0
    assert cache.load_back(TURNS[0].context, 100, 1.0, None) == 100
    assert cache.load_back(TURNS[0].context, 100, 1.0, None) == 0
    cache.request(request(9, 4, 1))
    assert cache.held_of(TURNS[0].context) == 0, "the least recent of all goes first"
    assert cache.held_of(TURNS[2].context) == 100


def test_the_table_has_each_policy_with_and_without(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--capacity", "100k", "--host", "300k", "--threshold", "2048", "--page-size", "16"]
    trace = "agents:runs=100,popularity=0"
    assert main(["load-back", "--trace", trace, *sizes]) == 0
    rows = [
        line.split() for line in capsys.readouterr().out.splitlines() if line.strip().startswith(("etlru", "belady"))
    ]
    assert [row[0] for row in rows] == ["etlru", "etlru", "belady", "belady"]
    for demand, forecast in (rows[:2], rows[2:]):
        assert forecast[4] == demand[3], "what both tiers lack is the same"
        assert demand[6] == "0"
    assert forecast[7] != "0", "what is known for certain to come next"


def test_requests_that_wait_for_nothing_have_no_change(tmp_path: FilePath, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"timestamp": at_ms, "input_length": 0, "output_length": 0, "hash_ids": []} for at_ms in (0, 10)]
    sizes = ["--capacity", "1k", "--host", "2k", "--threshold", "512"]
    assert main(["load-back", "--trace", write_lines(tmp_path / "t.jsonl", *rows), *sizes]) == 0
    told = capsys.readouterr().out
    assert ("nan" in told, told.count("+0.0%")) == (False, 2 * 3)


def test_a_host_that_holds_less_than_the_device_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--capacity", "2k", "--host", "1k", "--threshold", "512"]
    assert main(["load-back", "--trace", "figure1", *sizes]) == 2
    assert capsys.readouterr().err == "eval load-back: --host 1000: must be at least --capacity 2000\n"
    assert main(["load-back", "--trace", "figure1", *sizes, "--host", "2k"]) == 0
