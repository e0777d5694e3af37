"""`python -m eval gpu`: the live comparison on a machine with an NVIDIA GPU, in one command and one folder.

1. A stock server: α and β of this model on this machine; ξ for the TTFT objective.
2. `tail/`: the three arms under conversations that overfill the pool; who has which TTFT.
3. `decode/`: stock lru and ours at saturation; throughput and inter-token latency must not differ by more than 1 %.
4. `results.md`: the tables, the machine and the commands.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from eval.command import tokens
from eval.live import replay
from eval.live.replay.arms import Arm, base_flags, default_arms, launched
from eval.live.replay.command import machine_facts
from eval.live.replay.rows import Folder, FolderError
from eval.live.replay.summary import ArmSummary, NoResultError, machine_sentences, markdown, sentences, summarise
from eval.live.server import ServerError
from eval.studies.paper.calibrate import LENGTHS, calibrate
from eval.studies.paper.timing import Timing, TimingError, read, write

__all__ = ["add_arguments", "run"]

TOLERANCE = 0.01
"""By how much decoding under our eviction may be slower than under stock lru."""

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
    parser.add_argument("--model", type=Path, help="default: random weights in the shape of Llama-7B, written here")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu: to try the command without a GPU")
    parser.add_argument("--slo", type=float, default=200.0, metavar="MS", help="TTFT objective (default: 200)")
    parser.add_argument("--pool", type=tokens, default=100_000, metavar="TOKENS", help="KV pool (default: 100k)")
    parser.add_argument("--page-size", type=int, default=16, metavar="N", help="tokens (default: %(default)s)")
    parser.add_argument("--next-prompt-estimate", type=tokens, default=200, metavar="TOKENS", help="Q̂ (default: 200)")
    parser.add_argument("--trace", default=TRACE, help="what is played (default: a chat mix of 400 conversations)")
    parser.add_argument("--decode-trace", default=DECODE_TRACE, help="what is played at saturation")
    parser.add_argument("--users", type=int, default=64, metavar="N", help="at once, at saturation (default: 64)")
    parser.add_argument("--repeats", type=int, default=2, metavar="N", help="of every arm (default: %(default)s)")
    parser.add_argument(
        "--lengths", type=tokens, nargs="+", default=list(LENGTHS), metavar="TOKENS", help="to calibrate by"
    )
    parser.add_argument("--out", type=Path, default=Path(".out/gpu"), metavar="DIR", help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Calibrate, play, write; 1 if something failed or decoding is slower than allowed; 2 if it cannot be done."""
    try:
        return _run(args)
    except NoResultError as error:  # a ValueError, as the others
        print(f"eval gpu: {error}", file=sys.stderr)
        return 1
    except (ValueError, FolderError, TimingError, ServerError, OSError) as error:
        print(f"eval gpu: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    if not 0 < args.slo < float("inf"):
        raise ValueError(f"--slo {args.slo:g}: must be more than 0 ms")
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
    baseline, _, ours = default_arms(threshold, args.next_prompt_estimate)
    arms = [("--arm", f"{arm.name}={shlex.join(arm.flags)}") for arm in (baseline, ours)]
    saturated = {"--loop": "closed", "--users": str(args.users), "--out": str(args.out / "decode")}
    decode = {**common, "--trace": args.decode_trace, **saturated}
    commands = [_words(tail), [*_words(decode), *(word for pair in arms for word in pair)]]
    status = max([_replay(words) for words in commands])
    if status == 2:
        return 2

    decoded = summarise(Folder(args.out / "decode"))
    played = {arm.name for arm in decoded}
    if missing := [arm.name for arm in (baseline, ours) if arm.name not in played]:
        print(
            f"eval gpu: {args.out / 'decode'}: {', '.join(missing)} not played; the same command goes on",
            file=sys.stderr,
        )
        return 1
    verdicts = decode_verdicts(decoded)
    for _, line in verdicts:
        print(line)
    facts = {**machine_facts(), "gpu": gpu, **_versions()}
    (args.out / "results.md").write_text(_results(args, timing, threshold, commands, verdicts, facts))
    print(f"{args.out / 'results.md'}")
    return max(status, int(not all(met for met, _ in verdicts)))


def gpu_facts() -> str:
    """Name, driver and memory of the first GPU.

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
    """α and β, measured on a stock server. Another measurement would be another ξ, and so another run: what the folder
    has is taken, so that a run that was cut off can go on."""
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
    parser = argparse.ArgumentParser()
    replay.add_arguments(parser)
    return replay.run(parser.parse_args(list(words)))


def decode_verdicts(arms: Sequence[ArmSummary]) -> list[tuple[bool, str]]:
    """Whether ours decodes as fast as the baseline, within the tolerance, and a line that says so."""
    baseline, ours = arms[0], arms[-1]
    throughput = ours.tokens_per_s / baseline.tokens_per_s - 1
    latency = ours.changes["itl_p50"]
    rates = f"{ours.tokens_per_s:,.1f} against {baseline.tokens_per_s:,.1f} tokens/s"
    waits = f"{ours.figures['itl_p50'].value:.2f} against {baseline.figures['itl_p50'].value:.2f} ms"
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
