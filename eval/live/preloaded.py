"""What the processes of a server import before they do anything; imported once, for all that are forked off it."""

# mypy: disable-error-code="attr-defined"
# It is about what SGLang keeps to itself.

import gc
import importlib
import importlib.util
import os

import setproctitle

from eval.live import forked

setproctitle.getproctitle()  # it finds the title's place before variables are set, and not after

before = dict(os.environ)

for module in (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.data_parallel_controller",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.scheduler",
    "sglang.srt.models.registry",
):
    importlib.import_module(module)
if importlib.util.find_spec("sglang_router"):
    importlib.import_module("sglang_router.launch_router")

hook_registry = importlib.import_module("sglang.srt.plugins.hook_registry")
propagate = hook_registry._propagate_patch


def propagate_what_modules_have(original: object, wrapped: object, source: object) -> int:
    """In a fork, to look for a hooked method in all modules copies the pages that they are in.

    No module has imported a method of a class.
    """
    return 0 if isinstance(source, type) else propagate(original, wrapped, source)


hook_registry._propagate_patch = propagate_what_modules_have

forked.SET_BY_IMPORTS.update({name: value for name, value in os.environ.items() if before.get(name) != value})
gc.freeze()  # a collector that writes to what all share makes copies of it
