"""A small block trace, and lru over its blocks by hand: what the command's figures are held against."""

from __future__ import annotations

import json
import random
from pathlib import Path

BLOCK = 512


def block_lists(seed: int, requests: int = 160, conversations: int = 30) -> list[list[int]]:
    """Prompts as blocks: conversations that grow by 1 to 6 blocks a turn, in random order."""
    rng = random.Random(seed)
    blocks = iter(range(10**6))
    open_ones: list[list[int]] = [[next(blocks)] for _ in range(conversations)]
    prompts = []
    for _ in range(requests):
        chosen = rng.choice(open_ones)
        chosen += [next(blocks) for _ in range(rng.randrange(1, 7))]
        prompts.append(list(chosen))
    return prompts


def write_blocks(path: Path, prompts: list[list[int]]) -> Path:
    """The prompts as a Mooncake trace, one a second."""
    rows = [
        {"timestamp": 1000 * number, "input_length": BLOCK * len(each), "output_length": 1, "hash_ids": each}
        for number, each in enumerate(prompts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def uncached_under_lru(prompts: list[list[int]], capacity: int) -> list[int]:
    """Uncached tokens of each request: the least recently used block goes first, of equally old ones the deepest."""
    used: dict[int, tuple[int, int]] = {}  # by block: (number of its last request, minus its depth)
    found = []
    for number, prompt in enumerate(prompts):
        hits = 0
        while hits < len(prompt) and prompt[hits] in used:
            hits += 1
        found.append(BLOCK * (len(prompt) - hits))
        for block in prompt[:hits]:
            del used[block]
        while len(used) + len(prompt) > capacity // BLOCK:
            del used[min(used, key=lambda block: used[block])]
        used.update({block: (number, -depth) for depth, block in enumerate(prompt)})
    return found


def percentile(values: list[int], share: float) -> float:
    """Between two values in proportion, as of all requests in order."""
    rising = sorted(values)
    place = share * (len(rising) - 1)
    low = int(place)
    high = min(low + 1, len(rising) - 1)
    return rising[low] + (rising[high] - rising[low]) * (place - low)
