"""The flags of `python -m eval report`, and the files that it writes."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from eval.arguments import THRESHOLD_HELP, number, output_folder, tokens, whole
from eval.render.report.rows import ReportError, read_rows
from eval.render.report.scene import CHOICES, Group, Scene, groups
from eval.simulate.rows import COMMANDS
from eval.simulate.timing import Timing

PAGE, FIGURES = "report.html", "figures"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder, and which of its cells the single-cell figures show."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="of `python -m eval simulate … --out DIR`")
    parser.add_argument(
        "--out", type=output_folder, metavar="DIR", help=f"for {PAGE} and {FIGURES}/ (default: the same)"
    )
    middle = "of the cell that single-cell figures show (default: the middle one)"
    parser.add_argument("--capacity", type=tokens, metavar="TOKENS", help=middle)
    parser.add_argument("--threshold", type=tokens, metavar="TOKENS", help=f"{THRESHOLD_HELP} {middle}")
    most = "of the figures (default: that of most cells)"
    parser.add_argument("--trace", metavar="NAME", help=f"in a folder of `compare`: {most}")
    parser.add_argument("--page-size", type=whole(1), metavar="N", help=most)
    parser.add_argument("--replicas", type=whole(1), metavar="N", help=most)
    parser.add_argument("--routing", metavar="R", help=most)
    parser.add_argument("--optional-caching", action=argparse.BooleanOptionalAction, help=most)
    parser.add_argument("--alpha", type=number(above=0), metavar="MS", help="ms a prefilled token: figures become TTFT")
    parser.add_argument("--beta", type=number(least=0), metavar="MS", help="ms of a request without any (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Write the page and the PNGs.

    Raises:
        ReportError, OSError: the folder does not hold what is asked for, or cannot be written to.
    """
    latency = _latency(args.alpha, args.beta)
    rows = read_rows(args.folder)
    found = groups(rows)
    chosen = _group(args, found)
    capacity, threshold = (-1 if value is None else value for value in (args.capacity, args.threshold))
    scene = Scene(args.folder, chosen, rows, capacity, threshold, latency)
    others = [Scene(args.folder, group, rows, latency=latency) for group in found if group != chosen]
    from eval.render.report.gallery import draw  # matplotlib: not before what is asked for is known to be there
    from eval.render.report.page import page

    out: Path = args.out or args.folder
    out.mkdir(parents=True, exist_ok=True)  # there may be no figure that makes it
    pictures = draw(scene, out / FIGURES)
    commands = args.folder / COMMANDS
    made_by = (commands.read_text() if commands.is_file() else "") + _command(args)
    (out / PAGE).write_text(page(scene, others, pictures, made_by))
    for picture in pictures:
        if picture.image is None:
            print(f"{picture.plot.file}: not drawn: {picture.reason}")
    drawn = sum(picture.image is not None for picture in pictures)
    cells = sum(row.asked_for for row in rows)
    print(f"{out / PAGE}: {cells} cell{'s' * (cells != 1)}, {drawn} figures in {out / FIGURES}/")
    return 0


def _latency(alpha: float | None, beta: float | None) -> Timing | None:
    if alpha is None:
        if beta is not None:
            raise ReportError(f"--beta {beta:g}: needs --alpha")
        return None
    return Timing(alpha, beta or 0.0, "given")


def _group(args: argparse.Namespace, found: Sequence[Group]) -> Group:
    """The first group that is as asked for."""
    for name in CHOICES:
        if (value := getattr(args, name)) is None:
            continue
        kept = [group for group in found if getattr(group, name) == value]
        if not kept:
            there = sorted({other for group in found if (other := getattr(group, name)) is not None})
            names = ", ".join(_words(name, other)[-1] for other in there) or "none"
            raise ReportError(f"{' '.join(_words(name, value))}: no such cells; there are {names}")
        found = kept
    return found[0]


def _command(args: argparse.Namespace) -> str:
    """The command with all of its flags, defaults filled in."""
    words = ["python", "-m", "eval", "report", str(args.folder)]
    for name, value in vars(args).items():
        if name not in ("folder", "command_line") and value is not None:
            words += _words(name, value)
    return shlex.join(words)


def _words(name: str, value: object) -> list[str]:
    """A flag as it is given."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", f"{value:g}" if isinstance(value, float) else str(value)]
