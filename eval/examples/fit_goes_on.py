"""Fits the classifier of eval/examples/goes_on.py: python -m eval.examples.fit_goes_on --trace … --out FILE.

It is fitted to the half of the conversations that begin first. The other half, which it has not seen, says what it is
worth. A conversation whose last turn is the last one of the trace counts as over.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import expit
from scipy.stats import mannwhitneyu

from eval.arguments import output_file
from eval.examples.goes_on import FEATURES, Classifier, features
from eval.trace_arguments import add_trace_arguments, trace_source
from eval.traces.reading.tokenizer import load_tokenizer
from eval.traces.request import Request

_PASSES = 4  # over all turns
_RATE = 0.03  # of the first step of a weight; half or twice: as good. Ten times: it learns the half by heart


class Example(NamedTuple):
    """The last message of a user, and whether another turn followed its answer."""

    message: Sequence[int]  # token ids
    went_on: bool


def examples(
    requests: Sequence[Request], tokenize: Callable[[str], Sequence[int]]
) -> tuple[list[Example], list[Example]]:
    """The turns of the half of the conversations that begin first, and those of the others, in order of arrival."""
    last = {request.conversation: request for request in requests}  # and in the order in which they begin
    early = set(list(last)[: len(last) // 2])
    halves: tuple[list[Example], list[Example]] = ([], [])
    for request in requests:
        said = [text for role, text in request.messages if role == "user"]
        if said:
            example = Example(tokenize(said[-1]), last[request.conversation] is not request)
            halves[request.conversation not in early].append(example)
    return halves


def fit(seen: Sequence[Example]) -> Classifier:
    """A logistic regression, by some passes of gradient steps that shrink with use (AdaGrad, Duchi et al. 2011).

    Raises:
        ValueError: all of the conversations go on, or none does.
    """
    went_on = np.array([example.went_on for example in seen], float)
    if not 0.0 < went_on.sum() < len(seen):
        raise ValueError(f"of {len(seen):,} turns, {went_on.sum():,.0f} are followed by another: nothing to tell apart")
    rows = [features(example.message) for example in seen]
    weights, bias = np.zeros(FEATURES), float(np.log(went_on.mean() / (1.0 - went_on.mean())))
    steps = np.ones(FEATURES)  # sum of squares of the gradients of each weight
    for _ in range(_PASSES):
        for row, outcome in zip(rows, went_on, strict=True):
            missed = outcome - expit(bias + weights[row].sum())
            steps[row] += missed * missed
            weights[row] += _RATE * missed / np.sqrt(steps[row])
    return Classifier(weights, bias)


def auc(classifier: Classifier, unseen: Sequence[Example]) -> float:
    """P(of a turn that was followed by another and one that was not, the first has the higher probability)."""
    predicted = np.array([classifier.probability(example.message) for example in unseen])
    went_on = np.array([example.went_on for example in unseen])
    above, below = predicted[went_on], predicted[~went_on]
    return float(mannwhitneyu(above, below).statistic / (len(above) * len(below)))


def main(words: Sequence[str] | None = None) -> int:
    """Fit, say what it is worth, and write the weights; returns an exit status."""
    parser = argparse.ArgumentParser(prog="python -m eval.examples.fit_goes_on", description=__doc__)
    add_trace_arguments(parser)
    parser.add_argument(
        "--out", type=output_file, required=True, metavar="FILE", help="of weights, to be named by GOES_ON"
    )
    args = parser.parse_args(words)
    try:
        if args.tokenizer is None:
            raise ValueError("--tokenizer: is required: the one of the model that is served")
        requests = trace_source(args).open(texts=True).requests
        seen, unseen = examples(requests, load_tokenizer(args.tokenizer))
        if not seen:
            raise ValueError(f"--trace {args.trace}: has no messages; it must be a chat trace with texts")
        classifier = fit(seen)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        classifier.save(args.out)
    except (ValueError, OSError) as error:
        print(f"fit_goes_on: {error}", file=sys.stderr)
        return 2
    share = sum(example.went_on for example in unseen) / max(len(unseen), 1)
    print(f"fitted to {len(seen):,} turns; of {len(unseen):,} others {share:.0%} were followed by another turn")
    print(f"told apart from those that were not: {auc(classifier, unseen):.1%} (50% is chance); {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
