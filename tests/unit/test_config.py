"""One configuration, validated in one place."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from radix_tlru import Config, ConfigError


def test_the_defaults_are_those_of_the_flags_table() -> None:
    absent = dict.fromkeys(["threshold", "next_prompt_estimate", "ttft_slo_ms", "trim_chunk", "host_threshold"])
    assert Config() == Config(policy="tlru", median_weight=None, **absent)
    assert (Config().objective_ms, Config().start_threshold, Config().is_pinned) == (200.0, 2048, False)


def test_a_threshold_is_pinned_and_an_objective_is_followed_from_the_start_value() -> None:
    pinned, slo = Config(threshold=4096), Config(ttft_slo_ms=50)
    assert (pinned.is_pinned, pinned.objective_ms, pinned.start_threshold) == (True, None, 4096)
    assert (slo.is_pinned, slo.objective_ms, slo.start_threshold) == (False, 50, 2048)
    assert Config(policy="lru").is_pinned
    assert Config(next_prompt_estimate=9000).start_threshold == 9001  # or nothing would be TEL-safe


def test_the_log_says_where_the_threshold_is_from() -> None:
    rest = "next_prompt_estimate=learned, median_weight=0, trim_chunk=1/100 of the pool, 1,024 tokens at most"
    assert str(Config()) == f"tlru (ttft_slo=200 ms, {rest})"
    assert str(Config(threshold=600)) == f"tlru (threshold=600 tokens, {rest})"
    assert str(Config(threshold=600, host_threshold=300)) == (
        f"tlru (threshold=600 tokens, {rest}, host_threshold=300 tokens)"
    )
    assert str(Config(threshold=600, trim_chunk=64)).endswith("median_weight=0, trim_chunk=64 tokens)")


def test_the_log_tells_a_weight_that_is_chosen_from_one_that_was_given() -> None:
    assert "median_weight=chosen, " in str(Config("etlru"))
    assert "median_weight=1, " in str(Config("etlru", median_weight=1))
    assert "median_weight=0, " in str(Config("tlru"))


def test_without_a_weight_that_of_etlru_is_one_and_that_of_tlru_is_as_published() -> None:
    assert Config("etlru", 600).weight == Config("etlru", 600, next_prompt_estimate=100).weight == 1.0
    assert Config("tlru", 600).weight == Config("tlru", 600, next_prompt_estimate=100).weight == 0.0, "Algorithm 1"
    for weight in (0.0, 0.3, 1):
        assert Config("tlru", 600, 100, weight).weight == weight


@pytest.mark.parametrize(
    ("pool", "chunk"), [(1000, 1), (8_191, 1), (8_192, 81), (65_536, 655), (100_000, 1_000), (2_000_000, 1_024)]
)
def test_a_trim_chunk_is_a_share_of_the_pool_unless_it_is_given(pool: int, chunk: int) -> None:
    assert Config().for_pool(pool) == Config(trim_chunk=chunk)
    assert Config(trim_chunk=7).for_pool(pool) == Config(trim_chunk=7)


@pytest.mark.parametrize(("pool", "largest"), [(1_000, 512), (8_192, 512), (2_000_000, 125_000)])
def test_a_trim_chunk_is_a_small_part_of_the_pool(pool: int, largest: int) -> None:
    assert Config(trim_chunk=largest).for_pool(pool).trim_chunk == largest
    with pytest.raises(
        ConfigError, match=f"--tlru-trim-chunk {largest + 1}: must be at most {largest} tokens in a pool"
    ):
        Config(trim_chunk=largest + 1).for_pool(pool)


def test_what_is_not_given_is_200_until_it_is_learned() -> None:
    assert (Config().next_prompt, Config("etlru").next_prompt, Config("etlru", next_prompt_estimate=0).next_prompt) == (
        200,
        200,
        0,
    )
    assert "next_prompt_estimate=learned" in str(Config("etlru"))
    assert "next_prompt_estimate=90 tokens" in str(Config("etlru", next_prompt_estimate=90))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"policy": "etlru", "warm": ""}, '--tlru-warm "": must be the name of a file'),
        ({"policy": "etlru", "state": ""}, '--tlru-state "": must be the name of a file'),
        ({"policy": "etlru", "state": "None"}, "--tlru-state None: must be the name of a file, or left out"),
        ({"policy": "etlru", "state": True}, "--tlru-state True: must be the name of a file, or left out"),
        ({"policy": "etlru", "warm": ["a"]}, "--tlru-warm ['a']: must be the name of a file, or left out"),
        ({"policy": "etlru", "return_model": 5}, "--tlru-return-model 5: must be module:attribute, or left out"),
        ({"policy": "fifo"}, "--radix-eviction fifo: must be one of tlru, etlru, lru"),
        ({"threshold": -1}, "--tlru-threshold -1: must be a whole number of tokens, 0 or more"),
        ({"threshold": 2**31}, f"--tlru-threshold {2**31}: must be a whole number of tokens, {2**31 - 1} at most"),
        ({"threshold": 2048.5}, "--tlru-threshold 2048.5: must be a whole number of tokens, 0 or more"),
        ({"threshold": "many"}, "--tlru-threshold many: must be a whole number of tokens, 0 or more"),
        ({"threshold": True}, "--tlru-threshold True: must be a whole number of tokens, 0 or more"),
        ({"next_prompt_estimate": -5}, "--tlru-next-prompt-estimate -5: must be a whole number of tokens, 0 or more"),
        ({"median_weight": -0.1}, "--tlru-median-weight -0.1: must be a number from 0 to 1"),
        ({"median_weight": 1.01}, "--tlru-median-weight 1.01: must be a number from 0 to 1"),
        ({"median_weight": math.nan}, "--tlru-median-weight nan: must be a number from 0 to 1"),
        ({"median_weight": "0.2"}, "--tlru-median-weight 0.2: must be a number from 0 to 1"),
        *(
            (
                {"median_weight": once},
                f"--tlru-median-weight {once}: must be a number from 0 to 1; {once} was removed, as it did not pay",
            )
            for once in ("auto", "load")
        ),
        ({"ttft_slo_ms": 0}, "--tlru-ttft-slo 0: must be a number of milliseconds above 0"),
        ({"ttft_slo_ms": math.inf}, "--tlru-ttft-slo inf: must be a number of milliseconds above 0"),
        ({"ttft_slo_ms": 10**400}, f"--tlru-ttft-slo {10**400}: must be a number of milliseconds above 0"),
        ({"median_weight": 10**400}, f"--tlru-median-weight {10**400}: must be a number from 0 to 1"),
        ({"ttft_slo_ms": "soon"}, "--tlru-ttft-slo soon: must be a number of milliseconds above 0"),
        ({"ttft_slo_ms": True}, "--tlru-ttft-slo True: must be a number of milliseconds above 0"),
        (
            {"threshold": 4096, "ttft_slo_ms": 100},
            "--tlru-threshold 4096: not together with --tlru-ttft-slo 100; give one of them",
        ),
        ({"host_threshold": -1}, "--tlru-host-threshold -1: must be a whole number of tokens, 0 or more"),
        (
            {"host_threshold": 100},
            "--tlru-host-threshold 100: must be more than 200, the tokens that a next prompt is expected to add "
            "(--tlru-next-prompt-estimate)",
        ),
        ({"policy": "lru", "ttft_slo_ms": 90}, "--tlru-ttft-slo 90: must be left out for lru, which has no threshold"),
        (
            {"policy": "lru", "median_weight": 0.5},
            "--tlru-median-weight 0.5: must be left out for lru, whose weight is 1",
        ),
        ({"trim_chunk": 0}, "--tlru-trim-chunk 0: must be a whole number of tokens, 1 or more"),
        ({"trim_chunk": 2.5}, "--tlru-trim-chunk 2.5: must be a whole number of tokens, 1 or more"),
        (
            {"threshold": 200},
            "--tlru-threshold 200: must be more than 200, the tokens that a next prompt is expected to add "
            "(--tlru-next-prompt-estimate)",
        ),
        (
            {"threshold": 90, "next_prompt_estimate": 90},
            "--tlru-threshold 90: must be more than --tlru-next-prompt-estimate 90, or nothing is ever TEL-safe",
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Config(**values)
    assert str(error.value) == message


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().threshold = 1  # type: ignore[misc]
