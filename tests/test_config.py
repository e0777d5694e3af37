"""One configuration, validated in one place."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from radix_tlru import Config, ConfigError


def test_the_defaults_are_those_of_the_flags_table() -> None:
    assert Config() == Config(policy="tlru", threshold=2048, next_prompt_estimate=200, median_weight=0.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"policy": "fifo"}, "--radix-eviction fifo: must be one of tlru, etlru, lru"),
        ({"threshold": -1}, "--tlru-threshold -1: must be a whole number of tokens, 0 or more"),
        ({"threshold": 2048.5}, "--tlru-threshold 2048.5: must be a whole number of tokens, 0 or more"),
        ({"threshold": "many"}, "--tlru-threshold many: must be a whole number of tokens, 0 or more"),
        ({"threshold": True}, "--tlru-threshold True: must be a whole number of tokens, 0 or more"),
        ({"next_prompt_estimate": -5}, "--tlru-next-prompt-estimate -5: must be a whole number of tokens, 0 or more"),
        ({"median_weight": -0.1}, "--tlru-median-weight -0.1: must be a number from 0 to 1"),
        ({"median_weight": 1.01}, "--tlru-median-weight 1.01: must be a number from 0 to 1"),
        ({"median_weight": math.nan}, "--tlru-median-weight nan: must be a number from 0 to 1"),
        ({"median_weight": "0.2"}, "--tlru-median-weight 0.2: must be a number from 0 to 1"),
        (
            {"threshold": 200},
            "--tlru-threshold 200: must be more than --tlru-next-prompt-estimate 200, or nothing is ever TEL-safe",
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
