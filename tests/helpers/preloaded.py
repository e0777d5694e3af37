"""What the processes of a server import before they do anything; imported once, for all that are forked off it."""

# ruff: noqa: F401
import gc

import sglang.srt.entrypoints.http_server
import sglang.srt.managers.data_parallel_controller
import sglang.srt.managers.detokenizer_manager
import sglang.srt.managers.scheduler
import sglang.srt.models.registry

import tests.helpers.forked

gc.freeze()  # a collector that writes to what all share makes copies of it
