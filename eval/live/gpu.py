"""`python -m eval gpu`: the live comparison on a machine with an NVIDIA GPU, in one command and one folder.

1. A stock server: α and β of this model on this machine, and from them ξ for the TTFT objective.
2. `tail/`: three arms under conversations that overfill the pool, and the TTFT of each.
3. `decode/`: stock lru and radix-tlru at saturation. Throughput and inter-token latency may differ by 1 %.
4. `results.md`: the tables, the machine and the commands.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from eval.arguments import Several, add_page_size, number, one_of, tokens, whole
from eval.command import execute
from eval.errors import RunError
from eval.live.calibrate import LENGTHS, calibrate
from eval.live.replay import command as replay
from eval.live.replay.arms import Arm, base_flags, default_arms
from eval.live.replay.hosts import launched
from eval.live.replay.plan import machine_facts
from eval.live.replay.rows import Folder
from eval.live.replay.summary import ArmSummary, summarise
from eval.live.replay.table import machine_sentences, markdown, sentences
from eval.simulate.timing import Timing, read, write

__all__ = ["add_arguments", "decode_verdicts", "gpu_facts", "run"]

TOLERANCE = 0.01
"""By how much decoding with radix-tlru may be slower than with stock lru, relative."""

# Some 1.6 M tokens of conversations: four times the default pool.
TRACE = (
    "chat-mix:conversations=400,arrival_span_s=120,first_prompt_median=2500,first_prompt_range=200/16000,"
    "next_prompt_range=20/800,answer_range=16/256,wait_median_s=20"
)
DECODE_TRACE = (
    "chat-mix:conversations=256,arrival_span_s=1,first_prompt_median=1000,first_prompt_range=200/4000,"
    "next_prompt_range=20/200,answer_range=256/512,max_turns=2,wait_median_s=0.01"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model and the objective; the rest has defaults for a 7B model on one GPU."""
    add = parser.add_argument
    add("--model", type=Path, help="default: random weights in the shape of Llama-7B, written here")
    add("--device", type=one_of(("gpu", "cpu")), default="gpu", metavar="D", help="gpu, or cpu to try the command")
    add("--slo", type=number(above=0), default=200.0, metavar="MS", help="TTFT objective (default: 200)")
    add("--pool", type=whole(1), default=100_000, metavar="TOKENS", help="KV pool (default: 100k)")
    add_page_size(parser, default=16)
    add("--next-prompt-estimate", type=tokens, default=200, metavar="TOKENS", help="Q̂ (default: 200)")
    add("--trace", default=TRACE, help="what is played (default: a chat mix of 400 conversations)")
    add("--decode-trace", default=DECODE_TRACE, help="what is played at saturation")
    add("--users", type=whole(1), default=64, metavar="N", help="at once, at saturation (default: 64)")
    add("--repeats", type=whole(1), default=2, metavar="N", help="of every arm (default: %(default)s)")
    add("--lengths", action=Several, type=whole(1), default=list(LENGTHS), metavar="TOKENS", help="to calibrate by")
    add("--out", type=Path, default=Path(".out/gpu"), metavar="DIR", help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Calibrate, play, write; returns 1 if a request failed or decoding is slower than allowed.

    Raises:
        ValueError, OSError: something asked for cannot be done.
        RunError: a server does not start, or an arm was not played.
    """
    gpu = gpu_facts() if args.device == "gpu" else "none: --device cpu"
    model = args.model or _model(args.device)
    args.out.mkdir(parents=True, exist_ok=True)

    timing = _calibrated(args, model)
    threshold = timing.tokens(args.slo)
    if not threshold:
        raise ValueError(f"--slo {args.slo:g}: leaves no token to prefill: TTFT = {timing.beta:.1f} ms + …")
    print(f"{_line(timing)}; ξ = {threshold:,}")

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
    tail = {**common, "--trace": args.trace, "--loop": "open", "--out": str(args.out / "tail")}
    baseline, _, candidate = default_arms(threshold, args.next_prompt_estimate)
    arms = [("--arm", f"{arm.name}={shlex.join(arm.flags)}") for arm in (baseline, candidate)]
    saturated = {"--loop": "closed", "--users": str(args.users), "--out": str(args.out / "decode")}
    decode = {**common, "--trace": args.decode_trace, **saturated}
    commands = [_words(tail), [*_words(decode), *(word for pair in arms for word in pair)]]
    status = max([_replay(words) for words in commands])
    if status == 2:
        return 2

    decoded = summarise(Folder(args.out / "decode"))
    played = {arm.name for arm in decoded}
    if missing := [arm.name for arm in (baseline, candidate) if arm.name not in played]:
        raise RunError(f"{args.out / 'decode'}: {', '.join(missing)} not played; the same command goes on")
    verdicts = decode_verdicts(decoded)
    for _, line in verdicts:
        print(line)
    facts = {**machine_facts(), "gpu": gpu, **_versions()}
    (args.out / "results.md").write_text(_results(args, timing, threshold, commands, verdicts, facts))
    print(f"{args.out / 'results.md'}")
    return max(status, int(not all(met for met, _ in verdicts)))


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
    on = {"device": args.device, "model": str(model), "pool": args.pool, "page_size": args.page_size}
    if path.is_file():
        timing, known = read(path), json.loads(path.read_bytes())
        for name, now in on.items():
            if known.get(name) != now:
                raise ValueError(f"{path}: measured with {name} {known.get(name)!r}, not {now!r}; give another --out")
        print(f"{path}: α and β as they were measured before")
        return timing
    flags = base_flags(args.device, model, args.pool, args.page_size)
    with launched(Arm("stock lru"), flags, "gpu-calibrate") as server:
        timing = calibrate(server.base_url, args.lengths)
    write(path, timing, **on)
    return timing


def _words(flags: dict[str, str]) -> list[str]:
    return [word for pair in flags.items() for word in pair]


def _replay(words: Sequence[str]) -> int:
    print("\npython -m eval replay " + shlex.join(words))
    return execute("replay", replay, words)


def decode_verdicts(arms: Sequence[ArmSummary]) -> list[tuple[bool, str]]:
    """Whether the last arm decodes as fast as the first within the tolerance, and a line that says so."""
    baseline, candidate = arms[0], arms[-1]
    throughput = candidate.tokens_per_s / baseline.tokens_per_s - 1
    latency = candidate.changes["itl_p50"]
    rates = f"{candidate.tokens_per_s:,.1f} against {baseline.tokens_per_s:,.1f} tokens/s"
    waits = f"{candidate.figures['itl_p50'].value:.2f} against {baseline.figures['itl_p50'].value:.2f} ms"
    interval = f"{latency.low:+.2%} to {latency.high:+.2%}"
    return [
        _verdict(throughput >= -TOLERANCE, f"decode throughput: {rates} ({throughput:+.2%})"),
        _verdict(latency.value <= TOLERANCE, f"inter-token latency: {waits} ({latency.value:+.2%}, {interval})"),
    ]


def _verdict(met: bool, text: str) -> tuple[bool, str]:
    return met, f"{text}: {'within' if met else 'NOT within'} {TOLERANCE:.0%}"


def _line(timing: Timing) -> str:
    return f"TTFT = {timing.beta:.2f} ms + {timing.alpha:.5f} ms · uncached tokens (R² {timing.r2 or 0:.3f})"


def _versions() -> dict[str, str]:
    found = {}
    for package in ("sglang", "torch", "flashinfer-python", "radix-tlru"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _results(
    args: argparse.Namespace,
    timing: Timing,
    threshold: int,
    commands: Sequence[Sequence[str]],
    verdicts: Sequence[tuple[bool, str]],
    facts: dict[str, object],
) -> str:
    tail = summarise(Folder(args.out / "tail"))
    lines = [
        "# Live on one machine",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        f"- {_line(timing)}, {timing.origin}",
        f"- ξ = {threshold:,} tokens for {args.slo:g} ms",
        "",
        "## The tail",
        "",
        markdown(tail),
        "",
        *sentences(tail),
        *machine_sentences(Folder(args.out / "tail")),
        "",
        "## Decoding at saturation",
        "",
        markdown(summarise(Folder(args.out / "decode"))),
        "",
        *(line for _, line in verdicts),
        "",
        "## Commands",
        "",
        "```console",
        *(f"$ python -m eval replay {shlex.join(words)}" for words in commands),
        "```",
    ]
    return "\n".join(lines) + "\n"
