"""`python -m eval gpu`: the live comparison on a machine with an NVIDIA GPU, in one command and one folder.

1. A stock server: α and β of this model on this machine, and from them ξ for the TTFT objective.
2. `tail/`: three arms under conversations that overfill the pool, and the TTFT of each.
3. `decode/`: stock lru and radix-tlru at saturation. Throughput and inter-token latency may differ by 1 %.
4. `results.md`: the tables, TTFT by uncached tokens, what evictions took, the machine and the commands.

`--quick` is one repeat of some 45 s an arm, meant to take at most eight minutes of a GPU's time with the six servers it
starts. Where servers start slowly, or `--trace` and `--load` are of another load, and saturation would not end in time,
it is left out; the same command goes on with it. A replay that has begun is played to its end.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from eval.arguments import (
    NEXT_PROMPT_HELP,
    Several,
    add_page_size,
    number,
    one_of,
    output_folder,
    shell_words,
    tokens,
    whole,
)
from eval.command import Parser, RunError, execute
from eval.live.calibrate import LENGTHS, calibrate
from eval.live.gpu_report import Report, decode_verdicts
from eval.live.replay import command as replay
from eval.live.replay.arms import Arm, base_flags, default_arms
from eval.live.replay.hosts import launched
from eval.live.replay.plan import machine_facts, plan_of
from eval.live.replay.rows import Folder
from eval.live.replay.summary import summarise
from eval.simulate.timing import Timing, read_timing, write_timing
from eval.timing_arguments import threshold_of
from radix_tlru.config import START_THRESHOLD
from radix_tlru.sglang.releases import torch_mismatch

# Some 1.6 M tokens of conversations: four times the default pool.
TRACE = (
    "chat-mix:conversations=400,arrival_span_s=120,first_prompt_median=2500,first_prompt_range=200/16000,"
    "next_prompt_range=20/800,answer_range=16/256,wait_median_s=20"
)
DECODE_TRACE = (
    "chat-mix:conversations=256,arrival_span_s=1,first_prompt_median=1000,first_prompt_range=200/4000,"
    "next_prompt_range=20/200,answer_range=256/512,max_turns=2,wait_median_s=0.01"
)
QUICK = (
    "chat-mix:conversations=120,arrival_span_s=35,first_prompt_median=2500,first_prompt_range=200/16000,"
    "next_prompt_range=20/800,answer_range=16/256,max_turns=4,wait_median_s=5"
)
QUICK_DECODE = (
    "chat-mix:conversations=128,arrival_span_s=1,first_prompt_median=1000,first_prompt_range=200/4000,"
    "next_prompt_range=20/200,answer_range=128/256,max_turns=2,wait_median_s=0.01"
)
POOL, QUICK_POOL = 100_000, 50_000
"""Tokens, of which the loads are several times as many."""

QUICK_S = 480.0
"""Seconds after which ``--quick`` begins nothing that would end later."""

_OF_GPU = ("device", "model", "next-prompt-estimate", "out", "page-size", "pool", "repeats", "settle", "slo", "trace")
_NOT_OF_A_LOAD = {
    **{f"--{name}": "must be given to gpu itself" for name in _OF_GPU},
    "--server-flags": "must be given to gpu itself, as --extra",
    "--threshold": "must be left out, as it follows from --slo and what is measured",
    "--arm": "must be left out, as stock lru, stock tlru and etlru are compared",
    "--url": "must be left out, as servers are started",
}
"""Flags of `replay` that gpu gives. With others its page would say what is not so."""

TREE_CORE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
"""Variable by which SGLang is told the core of its radix tree: `rust`, its default, or `python`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model and the objective; the rest has defaults for a 7B model on one GPU."""
    add = parser.add_argument
    add("--model", type=Path, help="default: random weights in the shape of Llama-7B, written here")
    add("--device", type=one_of(("gpu", "cpu")), default="gpu", metavar="D", help="gpu, or cpu to try the command")
    add("--slo", type=number(above=0), default=200.0, metavar="MS", help="TTFT objective (default: 200)")
    add("--pool", type=whole(1), metavar="TOKENS", help="KV pool (default: 100k; 50k with --quick)")
    add_page_size(parser, default=16)
    add("--next-prompt-estimate", type=tokens, default=200, metavar="TOKENS", help=f"{NEXT_PROMPT_HELP} (default: 200)")
    add("--trace", help="what is played (default: a chat mix of 400 conversations)")
    add("--decode-trace", help="what is played at saturation (default: a chat mix with long answers)")
    add("--extra", type=shell_words, default=[], metavar="FLAGS", help="flags of SGLang, for the server of every arm")
    add(
        "--load",
        type=shell_words,
        default=[],
        metavar="FLAGS",
        help="flags of `eval replay` for what is played, such as '--shrink 16 --speed 7 --until 1890'",
    )
    add("--settle", type=number(least=0), default=0.0, metavar="S", help="of the load: sent sooner, in no figure (0)")
    add("--quick", action="store_true", help="one repeat of a short load: meant for 8 minutes of a GPU's time")
    add("--users", type=whole(1), default=64, metavar="N", help="at once, at saturation (default: 64)")
    add("--repeats", type=whole(1), metavar="N", help="of every arm (default: 2; 1 with --quick)")
    add("--lengths", action=Several, type=whole(1), default=list(LENGTHS), metavar="TOKENS", help="to calibrate by")
    add("--out", type=output_folder, default=Path(".out/gpu"), metavar="DIR", help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Calibrate, play, write; returns 1 if a request failed or decoding is slower than allowed.

    Raises:
        ValueError, OSError: something asked for cannot be done.
        RunError: a server does not start, or an arm was not played.
    """
    began = time.monotonic()
    gpu = gpu_facts() if args.device == "gpu" else "none: --device cpu"
    _fill_in(args)
    _check_lengths(args.lengths)
    _check_loads(args)
    if (mismatch := torch_mismatch()) and os.environ.setdefault(TREE_CORE, "python") == "python":
        print(f"every arm is on SGLang's Python tree core: {mismatch}")
    model = args.model or _model(args.device)
    args.out.mkdir(parents=True, exist_ok=True)

    timing = _calibrated(args, model)
    threshold = threshold_of("--slo", args.slo, timing)
    print(f"{timing} tokens (R² {timing.r2 or 0:.3f}); ξ = {threshold:,}")

    baseline, _, candidate = default_arms(threshold, args.next_prompt_estimate)
    commands = _commands(args, model, threshold, (baseline, candidate))
    facts = {"gpu": gpu, **machine_facts(), **_versions(), "tree core": os.environ.get(TREE_CORE, "as SGLang chooses")}
    report = Report(args.out, facts, timing, args.slo, args.settle, commands)
    statuses: list[int] = []
    took_s = 0.0
    for words in commands:
        started = time.monotonic()
        ends_s = started - began + took_s * 2 / 3  # two arms of three are played again, and for less long
        if args.quick and statuses and ends_s > QUICK_S:
            print(f"saturation: left out, as --quick would take {ends_s:,.0f} s with it; the same command goes on")
            return statuses[0]
        statuses.append(_replay(words))
        took_s = time.monotonic() - started
        if statuses[-1] == 2:
            return 2
        print(report.write())

    decoded = summarise(Folder(args.out / "decode"))
    played = {arm.name for arm in decoded}
    if missing := [arm.name for arm in (baseline, candidate) if arm.name not in played]:
        raise RunError(f"{args.out / 'decode'}: {', '.join(missing)} not played; the same command goes on")
    verdicts = decode_verdicts(decoded)
    for _, line in verdicts:
        print(line)
    return max(*statuses, int(not all(met for met, _ in verdicts)))


def _check_loads(args: argparse.Namespace) -> None:
    """Raise ValueError or OSError for a trace or flags of a load that cannot be played, or that are not of a load.

    Otherwise that would be said after a model was written and calibrated.
    """
    for own, reason in _NOT_OF_A_LOAD.items():
        # argparse takes the beginning of a flag for the flag.
        if any(own.startswith(word.partition("=")[0]) for word in args.load if word[:2] == "--" != word):
            raise ValueError(f"--load {own}: {reason}")
    threshold = args.next_prompt_estimate + START_THRESHOLD  # it is not known yet
    arms = default_arms(threshold, args.next_prompt_estimate)
    for words in _commands(args, Path("not-written-yet"), threshold, arms[::2]):
        parser = Parser(prog="python -m eval replay")
        replay.add_arguments(parser)
        plan = plan_of(parser.parse_args(words))
    if all(turn.output_tokens < 2 for each in plan.load.conversations for turn in each.turns):  # of the second
        raise ValueError(f"--decode-trace {args.decode_trace}: must have answers of 2 tokens or more, to time decoding")


def _commands(args: argparse.Namespace, model: Path, threshold: int, saturated: Sequence[Arm]) -> list[list[str]]:
    """The words of the two replays: the load, and these arms at saturation."""
    common = {
        "--device": args.device,
        "--model": str(model),
        "--pool": str(args.pool),
        "--page-size": str(args.page_size),
        "--threshold": str(threshold),
        "--next-prompt-estimate": str(args.next_prompt_estimate),
        "--slo": f"{args.slo:g}",
        "--repeats": str(args.repeats),
    }
    if args.extra:
        common["--server-flags"] = shlex.join(args.extra)
    tail = {**common, "--trace": args.trace, "--loop": "open", "--out": str(args.out / "tail")}
    if args.settle:
        tail["--settle"] = f"{args.settle:g}"
    decode = {**common, "--trace": args.decode_trace, "--loop": "closed", "--users": str(args.users)}
    decode["--out"] = str(args.out / "decode")
    arms = [word for arm in saturated for word in ("--arm", f"{arm.name}={shlex.join(arm.flags)}")]
    return [[*_words(tail), *args.load], [*_words(decode), *arms]]


def _fill_in(args: argparse.Namespace) -> None:
    """What was not asked for, by whether it has to be quick."""
    quick, usual = (QUICK, QUICK_DECODE, QUICK_POOL, 1), (TRACE, DECODE_TRACE, POOL, 2)
    trace, decode, pool, repeats = quick if args.quick else usual
    args.trace, args.decode_trace = args.trace or trace, args.decode_trace or decode
    args.pool, args.repeats = args.pool or pool, args.repeats or repeats


def _check_lengths(lengths: Sequence[int]) -> None:
    """Refuse what no line can be fitted to, before a server starts."""
    if len(set(lengths)) < 2:
        raise ValueError(f"--lengths {' '.join(map(str, lengths))}: must be two or more lengths")


def gpu_facts() -> str:
    """Name, driver version and memory of the first GPU.

    Raises:
        ValueError: there is none.
    """
    query = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    try:
        found = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"--device gpu: nvidia-smi finds none ({error}); --device cpu tries the command") from None
    return found.splitlines()[0]


def _model(device: str) -> Path:
    from radix_tlru.tools.demo_model import SHAPES, write_demo_model

    shape = "llama-7b" if device == "gpu" else "tiny"
    path = Path(".out") / ("llama-7b" if device == "gpu" else "demo-model")
    write_demo_model(path, SHAPES[shape])
    return path


def _calibrated(args: argparse.Namespace, model: Path) -> Timing:
    """α and β, measured on a stock server, or as the folder has them.

    Another measurement would give another ξ and so another run; a run that was cut off could not go on.
    """
    path: Path = args.out / "timing.json"
    on: dict[str, object] = {"device": args.device, "model": str(model), "pool": args.pool, "page_size": args.page_size}
    on |= {"extra": shlex.join(args.extra), "lengths": args.lengths}
    if path.is_file():
        untold = {"extra": "", "lengths": list(LENGTHS)}  # what they were where a file does not say
        timing, known = read_timing(path), untold | json.loads(path.read_bytes())
        for name, now in on.items():
            if known.get(name) != now:
                raise ValueError(f"{path}: measured with {name} {known.get(name)!r}, not {now!r}; give another --out")
        print(f"{path}: α and β as they were measured before")
        return timing
    flags = [*base_flags(args.device, model, args.pool, args.page_size), *args.extra]
    with launched(Arm("stock lru"), flags, "gpu-calibrate") as server:
        timing = calibrate(server.base_url, args.lengths)
    write_timing(path, timing, **on)
    return timing


def _words(flags: dict[str, str]) -> list[str]:
    """As they are typed; a value that begins with a dash behind an equals sign, or it would be taken for a flag."""
    return [
        word for flag, value in flags.items() for word in ([f"{flag}={value}"] if value[:1] == "-" else [flag, value])
    ]


def _replay(words: Sequence[str]) -> int:
    print("\npython -m eval replay " + shlex.join(words))
    return execute("replay", replay, words)


def _versions() -> dict[str, str]:
    found = {}
    for package in ("sglang", "torch", "flashinfer-python", "radix-tlru"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
