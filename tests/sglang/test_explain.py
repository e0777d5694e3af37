"""What a request lacked, and who had it evicted: of real caches, in five lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from sglang.srt.entrypoints.http_server import app
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.utils.auth import _get_auth_level_from_app_and_scope, decide_request_auth

from radix_tlru import Config, ConfigError
from radix_tlru.sglang import explainer
from radix_tlru.sglang.explain_hooks import add_route, newest, room_for_decode, room_for_prefill
from radix_tlru.sglang.explainer import Explainer
from radix_tlru.sglang.scheduler.batches import batch_processed, server_idle
from radix_tlru.tools.explanation import ROUTE, Explanation, lines
from tests.helpers.caches import Driver, our_cache
from tests.helpers.served import served

pytestmark = pytest.mark.usefixtures("tree_core")

POOL, THRESHOLD, NEXT_PROMPT = 4_000, 600, 100


class Explained(Driver):
    """A cache whose requests are named after their conversation and turn: A1, A2, B1."""

    def __init__(self, **config: object) -> None:
        given = {"policy": "tlru", "threshold": THRESHOLD, "next_prompt_estimate": NEXT_PROMPT, "trim_chunk": 1}
        super().__init__(our_cache(POOL, **{**given, "explain": True, **config}))
        self._now = 0.0
        self._turns: dict[str, int] = {}

    def turn(self, conversation: str, tokens: int, rid: str | None = None) -> int:
        """All of the tokens but 10 are prompt; room is made as for a batch of this request alone."""
        history = self.histories.setdefault(conversation, [])
        history += self.fresh(tokens)
        self._now += 1.0
        self._turns[conversation] = self._turns.get(conversation, 0) + 1
        rid = f"{conversation}{self._turns[conversation]}" if rid is None else rid
        batch = SimpleNamespace(tree_cache=self.cache, reqs=[SimpleNamespace(rid=rid, extend_len=tokens)])

        def prepared(_batch: object) -> int:
            return self.request(history, len(history) - 10, self._now, rid=rid)

        return int(room_for_prefill(prepared, batch))

    def explanation(self, rid: str) -> Explanation:
        found = self.cache.tail.explainer.explanation(rid)
        assert found is not None
        return found


def test_a_request_is_told_what_it_lacked_and_who_had_it_evicted() -> None:
    """Of A's 1,800 tokens 1,800 + 100 - 600 = 1,300 must stay; C is 500 too many for the pool."""
    cache = Explained()
    cache.turn("A", 1_800)
    cache.turn("B", 1_500)
    cache.turn("C", 1_200)
    assert cache.turn("A", 110) == 1_300
    told = cache.explanation("A2")
    assert (told.prompt, told.cached, told.new, told.threshold, told.silent_s) == (1_900, 1_300, 100, THRESHOLD, 3.0)
    eviction = told.eviction
    assert eviction is not None
    assert (eviction.tokens, eviction.cuts, eviction.largest) == (500, 1, 500)
    assert eviction.needed_for == "the prefill of 1,200 tokens of request C1"
    assert (eviction.cost, eviction.exceed_probability, eviction.median_weight) == (0.0, 0.0, 0.0)
    assert eviction.return_rate > 0
    assert eviction.first_at == eviction.last_at <= told.finished_at
    # lru drops the end of A, too, which is the longest unused.
    assert told.lru_cached == 1_300
    request, lacked, evicted, price, lru = lines(told)
    assert request.startswith("request: A2 prefilled 600 of 1,900 prompt tokens, within ξ = 600; done at ")
    assert request.endswith(" under tlru")
    assert lacked == "lacked:  500 tokens that were cached 3 s before; 100 were new"
    assert evicted.startswith("evicted: 500 tokens, ")
    assert evicted.endswith(" for the prefill of 1,200 tokens of request C1")
    assert price.startswith("price:   0 a token of them, the lowest of all then: λ ")
    assert price.endswith(", P(over ξ) 0.00, w 0")
    assert lru == "lru:     would have had 1,300 tokens of it cached, as many (by a shadow cache)"


@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE])
def test_room_for_running_requests_is_told_as_theirs_from_their_first_step_on(mode: ForwardMode) -> None:
    """SGLang asks for room before it prepares a step, and before the first one a batch is still that of a prefill.

    A, B and C fill the pool of 4,000. Two requests that run need a token each.
    """
    cache = Explained()
    for name, tokens in (("A", 1_800), ("B", 1_500), ("C", 700)):
        cache.turn(name, tokens)
    running = ScheduleBatch(
        reqs=[served(range(10), range(3)) for _ in range(2)],
        tree_cache=cache.cache,
        token_to_kv_pool_allocator=cache.allocator,
        forward_mode=mode,
        spec_algorithm=SpeculativeAlgorithm.NONE,
    )
    assert room_for_decode(ScheduleBatch.check_decode_mem, running)
    cache.turn("A", 110)
    eviction = cache.explanation("A2").eviction
    assert eviction is not None
    assert (eviction.tokens, eviction.needed_for) == (2, "the next token of 2 running requests")


def test_what_lru_would_have_kept_is_told_where_it_is_more_and_where_it_is_less() -> None:
    """Tails beyond the budget go first: 500 tokens of A, B and C each. lru takes all it needs from A, the oldest."""
    cache = Explained()
    cache.turn("A", 2_000)
    cache.turn("B", 1_900)
    cache.turn("C", 600)  # 500 too many: those of A, with lru as well
    cache.turn("D", 500)  # those of B; with lru, of A
    assert cache.turn("B", 110) == 1_400
    assert [*lines(cache.explanation("B2"))][4].endswith(" 1,900 tokens of it cached, 500 more (by a shadow cache)")
    assert cache.turn("A", 110) == 1_500  # B took 610: from C and D; with lru 110, of A
    assert [*lines(cache.explanation("A2"))][4].endswith(" 890 tokens of it cached, 610 fewer (by a shadow cache)")


@pytest.mark.parametrize(("held", "had"), [(0, 1_200), (POOL // 2, POOL // 2 - 1_200)])
def test_lru_would_have_had_the_room_that_running_requests_leave(held: int, had: int) -> None:
    cache = Explained()
    cache.allocate(held)
    for number in range(400):
        cache.turn(f"N{number}", 50)
    for conversation, tokens in (("A", 1_200), ("B", 1_200), ("A", 110)):
        cache.turn(conversation, tokens)
    assert cache.explanation("A2").lru_cached == had


def test_many_cuts_are_added_up_until_the_next_turn() -> None:
    cache = Explained()
    cache.turn("A", 3_800)
    for number in range(5):
        cache.turn(f"B{number}", 100)
    cache.turn("A", 110)
    eviction = cache.explanation("A2").eviction
    assert eviction is not None
    assert (eviction.cuts, eviction.tokens, eviction.largest) == (3, 300, 100)
    assert "in 3 cuts, 100 of them for the prefill of 100 tokens of request B" in [*lines(cache.explanation("A2"))][2]
    cache.turn("A", 30)
    third = cache.explanation("A3")
    assert third.eviction is None
    told = [*lines(third)]
    assert told[1] == "lacked:  nothing that was cached before; 20 tokens were new"
    assert told[2:4] == ["evicted: nothing", "price:   –"]


class Requests(list):
    """Requests of a batch, which know how often somebody went through them."""

    looks = 0

    def __iter__(self) -> Iterator[object]:
        self.looks += 1
        return super().__iter__()


def test_who_needs_room_is_looked_up_once_however_much_goes_for_it() -> None:
    cache = Explained()
    for number in range(30):
        cache.turn(f"A{number}", 100)
    requests = Requests(SimpleNamespace(rid=f"B{number}", extend_len=number) for number in range(200))
    room_for_prefill(lambda _: cache.evict(2_000), SimpleNamespace(tree_cache=cache.cache, reqs=requests))
    assert cache.turn("A3", 30) == 0
    eviction = cache.explanation("A32").eviction
    assert eviction is not None
    assert eviction.needed_for == "the prefill of 199 tokens of request B199 and 199 others"
    assert requests.looks == 1


def test_what_is_shared_is_found_though_another_used_it_last() -> None:
    """Three conversations begin with 1,000 tokens. All of it goes, with the last of them; a fourth lacks it."""
    cache = Explained(policy="etlru", median_weight=1.0)
    prefix = cache.fresh(1_000)
    for name in "ABC":
        cache.histories[name] = [*prefix]
        cache.turn(name, 60)
    cache.turn("D", 4_000)
    cache.histories["E"] = [*prefix]
    assert cache.turn("E", 60) == 0
    told = cache.explanation("E1")
    assert told.silent_s < 0
    assert told.eviction is not None
    assert told.eviction.needed_for == "the prefill of 4,000 tokens of request D1"
    _, lacked, _, price, _ = lines(told)
    assert "1,000 tokens that were cached in other conversations; 50 were new" in lacked
    assert price.endswith(", P(over ξ) –, w 1"), "this policy sees no threshold"


def test_of_a_path_with_many_forks_the_deepest_64_are_looked_at() -> None:
    """100 conversations leave one path, each 32 tokens deeper. All of it goes but the first 1,000, and one lacks it."""
    cache = Explained(policy="etlru", median_weight=1.0)
    path = cache.fresh(100 * 32)
    for number in range(1, 101):
        cache.histories[f"N{number} "] = path[: 32 * number]
        cache.turn(f"N{number} ", 60)
    cache.turn("D", 3_000)
    assert sum(key < 0 for key in cache.cache.tail.explainer._evictions) == 64, "prefixes; the others are conversations"
    cache.histories["E"] = path[: 99 * 32]
    assert cache.turn("E", 60) == 1_000
    told = cache.explanation("E1")
    assert told.eviction is not None
    assert told.eviction.needed_for == "the prefill of 3,000 tokens of request D1"
    assert "2,168 tokens that were cached in other conversations; 50 were new" in [*lines(told)][1]


def test_memory_is_bounded_and_a_request_beyond_it_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explainer, "MOST_REQUESTS", 3)
    monkeypatch.setattr(explainer, "_MOST_EVICTIONS", 2)
    cache = Explained()
    for number in range(20):
        cache.turn(f"N{number} ", 900)
    known = cache.cache.tail.explainer
    assert [known.explanation(f"N{number} 1") is None for number in range(20)] == [True] * 17 + [False] * 3
    assert len(known._requests) == 3
    assert len(known._evictions) == 2


def test_an_id_that_a_client_chose_fills_neither_memory_nor_the_screen() -> None:
    """The one of a request that had another evicted, too: it is in what is told of that one."""
    cache = Explained()
    ids = [f"\x1b[2J{letter * 1_000_000}\n" for letter in "ABC"]
    for rid, tokens in zip(ids, (1_800, 1_500, 1_200), strict=True):
        cache.turn(rid[-2], tokens, rid)
    again = f"{ids[0]}again"
    cache.turn("A", 110, again)
    told = [*lines(cache.explanation(again))]
    assert told[0].startswith("request: \\x1b[2JAAAA")
    assert " of request \\x1b[2JCCCC" in told[2]
    assert all(line.isprintable() and len(line) < 300 for line in told)
    known = cache.cache.tail.explainer
    assert len({*known._requests}) == 4, "each is told from the others"
    assert max(len(name) for name in known._requests) < 200
    assert {known.explanation(rid).prompt for rid in ids} == {1_790, 1_490, 1_190}


def in_a_batch(cache: Explained, serve: Callable[[], object]) -> None:
    """The scheduler processes the result of a batch, by which requests are served."""
    scheduler = SimpleNamespace(tree_cache=cache.cache, device="cpu")
    batch_processed(lambda *_: serve(), scheduler, SimpleNamespace(launch_ts=None))


def watch_shadow(cache: Explained) -> list[int]:
    """Ids of the leaves that the shadow cache under lru has evicted, from now on."""
    shadow, evicted = cache.cache.tail.explainer._lru, list[int]()
    evict = shadow._evict

    def watched(leaf_id: int, keep: int) -> None:
        evicted.append(leaf_id)
        evict(leaf_id, keep)

    shadow._evict = watched
    return evicted


def test_room_that_lru_would_have_made_is_made_a_few_leaves_at_a_time_when_the_server_is_idle() -> None:
    """A long context takes the place of 180 short ones: the answers of others must not wait for that."""
    cache = Explained()
    for number in range(200):
        in_a_batch(cache, lambda number=number: cache.turn(f"N{number} ", 20))
    scheduler = SimpleNamespace(tree_cache=cache.cache)
    while cache.cache.has_work:
        server_idle(lambda _: None, scheduler)
    evicted, steps = watch_shadow(cache), list[int]()
    in_a_batch(cache, lambda: cache.turn("A", 3_600))
    assert (cache.explanation("N0 1").lru_cached, evicted) == (0, [])
    while cache.cache.has_work:
        before = len(evicted)
        server_idle(lambda _: None, scheduler)
        steps.append(len(evicted) - before)
    assert sum(steps) == 180
    assert max(steps) <= 8
    assert cache.explanation("A1").lru_cached == 0
    in_a_batch(cache, lambda: cache.turn("A", 50))
    while cache.cache.has_work:
        server_idle(lambda _: None, scheduler)
    assert cache.explanation("A2").lru_cached == 3_600


def test_who_asks_before_that_is_done_gets_it_by_asking_again() -> None:
    cache = Explained()
    for number in range(200):
        cache.turn(f"N{number} ", 20)
    in_a_batch(cache, lambda: cache.turn("A", 3_600))
    evicted, asked = watch_shadow(cache), 1
    while (told := cache.explanation("A1")).lru_cached is None:
        assert [*lines(told)][4] == "lru:     not known yet (its shadow cache is behind)"
        assert len(evicted) <= 8 * asked
        asked += 1
    assert asked == 180 // 8 + 1
    assert told.lru_cached == 0


@pytest.mark.parametrize("waits", [False, True], ids=["all is recorded", "turns wait"])
def test_a_flush_takes_from_lru_what_it_takes_from_the_cache(waits: bool) -> None:
    """Also of turns that are recorded after it: of many that end in one step a few are recorded at its end."""
    cache = Explained()
    cache.turn("B", 500)

    def serve() -> None:
        for number in range(20 * waits):
            cache.turn(f"N{number} ", 50)
        cache.turn("A", 1_800)
        if waits:
            assert (cache.turn("A", 50), cache.turn("B", 50)) == (1_800, 500)

    if waits:
        in_a_batch(cache, serve)
    else:
        serve()
    cache.cache.reset()
    cache.allocator.clear()
    assert cache.turn("A", 110) == 0
    last = cache.explanation("A3" if waits else "A2")
    assert last.lru_cached == 0
    unknown = "before what is remembered, or by a flush; or nothing, if it wanted logprobs of its prompt"
    assert [*lines(last)][2] == f"evicted: not known: {unknown}"
    if waits:
        assert [cache.explanation(rid).lru_cached for rid in ("A2", "B2")] == [1_800, 500], "they were served before"


def test_of_a_server_that_is_never_idle_requests_are_explained_all_the_same() -> None:
    """As many turns end in each step, and as many leaves go for them, as come."""
    cache, waiting = Explained(), list[int]()
    for step in range(200):
        in_a_batch(cache, lambda step=step: [cache.turn(f"N{step} {number}", 30) for number in range(4)])
        waiting.append(cache.cache.tail.explainer.unreplayed)
    assert max(waiting) <= 4 * 128
    assert waiting[-1] == waiting[-50]
    known = [cache.cache.tail.explainer.explanation(f"N{step} 01") for step in range(200)]
    assert [told is not None and told.lru_cached == 0 for told in known[:50]] == [True] * 50


@pytest.mark.parametrize(
    ("api_key", "admin_api_key", "allowed"),
    [
        (None, None, {None, "client", "operator"}),
        ("client", None, {"client"}),
        (None, "operator", {"operator"}),
        ("client", "operator", {"operator"}),
    ],
)
def test_a_question_is_the_operators_as_an_answer_names_requests_of_others(
    api_key: str | None, admin_api_key: str | None, allowed: set[str | None]
) -> None:
    add_route()
    scope = {"type": "http", "method": "GET", "path": ROUTE, "headers": [], "query_string": b"rid=a"}
    asked = {"method": "GET", "path": ROUTE, "auth_level": _get_auth_level_from_app_and_scope(app, scope)}
    keys = {"api_key": api_key, "admin_api_key": admin_api_key}
    for given in (None, "client", "operator"):
        header = given and f"Bearer {given}"
        assert decide_request_auth(**asked, **keys, authorization_header=header).allowed == (given in allowed)


def test_of_replicas_that_know_an_id_the_one_that_served_it_last_answers() -> None:
    replicas = Explained(), Explained()
    assert [replica.turn("A", 500, "same") for replica in replicas] == [0, 0]
    told = [asdict(replica.explanation("same")) for replica in replicas]
    assert (newest(told), newest(told[::-1]), newest([])) == (told[1], told[1], None)


def test_a_fault_ends_explanations_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Explained()
    cache.turn("A", 1_800)

    def broken(*_args: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(Explainer, "_count_eviction", broken)
    for name in "BCD":
        cache.turn(name, 1_500)
    assert cache.cache.tail.explainer.explanation("A1") is None
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "radix_tlru: to explain requests failed; from now on none is explained"
    ]
    assert cache.cache.tail.learner is not None, "it learns and evicts as before"
    assert not cache.cache.tail.breaker.has_tripped


def test_what_is_evicted_is_the_same_with_and_without() -> None:
    explained, plain = Explained(policy="etlru"), Explained(policy="etlru", explain=False)
    for number in range(300):
        name = f"{number * 7 % 13}"
        assert explained.turn(name, 90 + number % 50) == plain.turn(name, 90 + number % 50), number
    assert explained.cache.tail.counts == plain.cache.tail.counts
    assert plain.cache.tail.explainer is None


def test_where_nothing_could_be_explained_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--tlru-explain: not together with --tlru-dry-run: stock tells nobody"):
        Config(explain=True, dry_run=True)
    with pytest.raises(ConfigError, match=r"^--tlru-explain: not together with lru, which knows no conversations$"):
        Config("lru", explain=True)
