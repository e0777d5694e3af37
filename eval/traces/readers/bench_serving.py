"""Results of SGLang's ``bench_serving --output-file FILE --output-details``: lengths of every request.

Source: sglang 0.5.23, ``sglang/benchmark/serving.py``. A line is one run. Neither prompts nor times of arrival are in
it: starts are drawn at the rate of the run, and nothing can be reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import msgspec
import numpy as np

from eval.traces.reading.files import Source
from eval.traces.reading.lengths import Call, rebuilt
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Count, Number, Record, bad_field, decode
from eval.traces.request import Request, TraceError


class _Run(msgspec.Struct):
    duration: Number = 0.0  # s
    input_lens: list[Count] | None = None
    output_lens: list[Count] | None = None
    start_times: list[Number] | None = None  # s; later releases and vLLM's write them
    errors: Any = None  # a text for each request, empty unless it failed
    model_id: str | None = None


def _detects(record: Mapping[str, Any]) -> bool:
    return "input_lens" in record or ("total_input_tokens" in record and "request_rate" in record)


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    units, rng, begin_s = count(), np.random.default_rng(options.arrivals.seed), 0.0
    notes.add("real", "lengths and the duration of the run; not the prompts")
    notes.add("rebuilt", "prompts are not in the file: nothing in them can be reused")
    for record in source.records():
        try:
            run = decode(record, _Run)
            inputs, outputs = _lengths(record, run)
        except TraceError as error:
            notes.bad(error)
            continue
        errors = run.errors if isinstance(run.errors, list) else []
        failed = {number for number, error in enumerate(errors) if error}
        if run.start_times is not None and len(run.start_times) == len(inputs):
            # One that failed before it was sent has 0 there, and others the time of a clock.
            first_s = min((each for n, each in enumerate(run.start_times) if n not in failed), default=0.0)
            starts_s = [begin_s + each - first_s for each in run.start_times]
        else:
            starts_s = (begin_s + np.sort(rng.uniform(0.0, max(run.duration, 1e-3), len(inputs)))).tolist()
            seed = options.arrivals.seed
            notes.add("drawn", f"arrivals, evenly over the run, seed {seed} (--arrivals seed=N changes them)")
        for number, (start_s, tokens, answer) in enumerate(zip(starts_s, inputs, outputs, strict=True)):
            if number in failed:
                notes.left_out(f"{record.where}: errors[{number}]: the request failed")
                continue
            yield from rebuilt(None, [Call(start_s, tokens, answer, model=run.model_id)], units, True)
        begin_s += max(run.duration, 1e-3)


def _lengths(record: Record, run: _Run) -> tuple[list[int], list[int]]:
    if run.input_lens is None or run.output_lens is None:
        raise bad_field(record, "input_lens", "missing: --output-details writes them, of vllm --save-detailed")
    if len(run.input_lens) != len(run.output_lens):
        lengths = f"{len(run.output_lens)} values, but input_lens has {len(run.input_lens)}"
        raise bad_field(record, "output_lens", lengths)
    return run.input_lens, run.output_lens


BENCH_SERVING = Reader(
    "bench-serving",
    "results of SGLang's bench_serving with --output-details: lengths alone",
    _detects,
    _read,
    texts=False,
)
