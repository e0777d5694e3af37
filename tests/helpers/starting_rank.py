"""One rank of two that make their caches.

Run as ``python -m tests.helpers.starting_rank RANK MEETING_POINT CONFIG…`` in a process of its own. A CONFIG is a JSON
object of fields that differ from those of ``our_cache_with_state``. For each the rank prints the turns that its learner
begins with, or the refusal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

from radix_tlru import ConfigError
from radix_tlru.learning.state_file import Origin, StateFile
from radix_tlru.sglang.offline import cache_params
from tests.helpers.caches import our_cache_with_state

MODEL, POOL, PAGE = "demo", 8_192, 16


def main(rank: int, meeting_point: str, *configs: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
    for config in map(json.loads, configs):
        params = cache_params(POOL, PAGE)
        params.tp_cache_group = dist.group.WORLD
        path = config.pop("state", None)
        file = None if path is None else StateFile(Path(path), Origin(MODEL, PAGE))
        try:
            cache = our_cache_with_state(params, file, saves=rank == 0, **config)
        except ConfigError as error:
            print(error)
        else:
            print(len(cache.tail.learner.snapshot().turns))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
