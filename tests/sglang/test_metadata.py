"""What is put with a request, however it comes: on SGLang's own records, without a server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.entrypoints.grpc_bridge import _GrpcRequest
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from sglang.srt.managers.io_struct import TokenizedEmbeddingReqInput
from sglang.srt.sampling.sampling_params import SamplingParams

from radix_tlru import Config
from radix_tlru.sglang.requests import metadata


def manager(mode: str = "null") -> Any:
    record = SimpleNamespace(_radix_tlru_config=Config(), tokenizer_worker_num=1, disaggregation_mode=mode, dp_size=1)
    return SimpleNamespace(server_args=record, rid_to_state={"r": SimpleNamespace()})


def tokenized(custom_params: Any = None, **fields: Any) -> Any:
    params = SamplingParams(custom_params=custom_params)
    return SimpleNamespace(rid="r", sampling_params=params, **fields)


def test_what_comes_by_grpc_has_no_top_to_take_hints_from() -> None:
    async def served(*_args: Any) -> str:
        return "served"

    asked = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "a"}])
    serving = SimpleNamespace(tokenizer_manager=manager())
    assert asyncio.run(metadata.move_hints(served, serving, asked, _GrpcRequest())) == "served"


def test_a_request_for_an_embedding_is_stamped() -> None:
    assert "stream" not in TokenizedEmbeddingReqInput.__struct_fields__
    asked = tokenized()
    metadata.add_metadata(asked, manager())
    assert metadata.metadata_of(asked).stamp is not None


def test_parameters_that_are_no_object_are_refused_where_a_client_can_be_told() -> None:
    with pytest.raises(ValueError, match=r"^custom_params 5: must be an object$"):
        metadata.add_metadata(tokenized(5, stream=True), manager())
    asked = tokenized(5, stream=True)
    metadata.add_metadata(asked, manager("prefill"))
    assert metadata.metadata_of(asked).stamp is not None


BESIDE_ANOTHER = """
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from radix_tlru.sglang.requests import metadata
for target in metadata.HOOKED:
    HookRegistry.register(target, lambda *args, **kwargs: None, HookType.AFTER)
HookRegistry.apply_hooks()
from sglang.srt.managers.tokenizer_manager import TokenizerManager
found = []
for _ in range(3):
    found.append(TokenizerManager._create_tokenized_object)
    metadata.install()
print(found[1] is not found[0], found[2] is found[1])
"""


def test_another_plugin_at_the_same_function_does_not_keep_ours_out() -> None:
    said = subprocess.run([sys.executable, "-c", BESIDE_ANOTHER], capture_output=True, text=True, check=False)
    assert said.stdout.split()[-2:] == ["True", "True"], said.stderr
