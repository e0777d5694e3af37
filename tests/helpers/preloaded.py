"""What the processes of a server import before they do anything; imported once, for all that are forked off it."""

# ruff: noqa: E402, F401
import gc
import os

import setproctitle

from tests.helpers import forked

setproctitle.getproctitle()  # it finds the title's place before variables are set, and not after

before = dict(os.environ)

import sglang.srt.entrypoints.http_server
import sglang.srt.managers.data_parallel_controller
import sglang.srt.managers.detokenizer_manager
import sglang.srt.managers.scheduler
import sglang.srt.models.registry
import sglang_router.launch_router

forked.SET_BY_IMPORTS.update({name: value for name, value in os.environ.items() if before.get(name) != value})
gc.freeze()  # a collector that writes to what all share makes copies of it
