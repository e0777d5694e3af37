"""One rank of two that begin with what a former run learned.

Run as ``python -m tests.helpers.state_rank RANK MEETING_POINT FILE…`` in a process of its own. For each file it prints
the turns that a learner begins with, or the refusal.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch.distributed as dist

from radix_tlru import ConfigError
from radix_tlru.learning.state_file import Origin, StateFile
from radix_tlru.sglang.offline import cache_params
from tests.helpers.caches import our_cache_with_state

MODEL, POOL, PAGE = "demo", 8_192, 16


def main(rank: int, meeting_point: str, *paths: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
    for path in paths:
        params = cache_params(POOL, PAGE)
        params.tp_cache_group = dist.group.WORLD
        try:
            cache = our_cache_with_state(params, StateFile(Path(path), Origin(MODEL, PAGE)), saves=rank == 0)
        except ConfigError as error:
            print(error)
        else:
            print(len(cache.tail.learner.snapshot().turns))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
