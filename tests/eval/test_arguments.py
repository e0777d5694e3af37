"""Arguments that several commands share."""

from __future__ import annotations

import argparse

import pytest

from eval.arguments import tokens


@pytest.mark.parametrize(
    ("text", "number"), [("65536", 65536), ("64k", 64_000), ("16.1k", 16_100), ("4.35M", 4_350_000), ("1e3k", 10**6)]
)
def test_a_number_of_tokens_is_exact(text: str, number: int) -> None:
    assert tokens(text) == number


@pytest.mark.parametrize("text", ["", "k", "nank", "infM", "0.0001k", "-1k", "1e99999999k", "9e9999999999999999999k"])
def test_what_is_no_number_of_tokens_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        tokens(text)
