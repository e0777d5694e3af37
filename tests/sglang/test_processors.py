"""Logit processors of clients are called as on a stock server, with what their clients gave and nothing beside."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers import sampler
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from sglang.srt.sampling.sampling_batch_info import ProcessorEntry, SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams

from radix_tlru import Config
from radix_tlru.sglang.requests import metadata, processors

VOCABULARY, WANTED = 8, 5


class OnlyToken(CustomLogitProcessor):
    """Answers with the token that a request wants, and as the model would where none is wanted."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        for row, params in enumerate(custom_param_list):
            if params is not None:
                wanted = params["token_id"]
                params["asked"] = params.get("asked", 0) + 1
                logits[row] = -torch.inf
                logits[row, wanted] = len(params["__req__"].origin_input_ids)
        return logits


def request(custom_params: dict[str, Any] | None, processor: str) -> Req:
    """A request in a scheduler, as it comes from where it was tokenized by a server of ours."""
    record = SimpleNamespace(
        _radix_tlru_config=Config("etlru", threshold=600), tokenizer_worker_num=1, disaggregation_mode="null"
    )
    tokenized = SimpleNamespace(rid="r", sampling_params=SamplingParams(custom_params=custom_params))
    metadata.add_metadata(tokenized, SimpleNamespace(server_args=record, preferred_sampling_params=None))
    return Req("r", "", array("q", [1, 2, 3]), tokenized.sampling_params, custom_logit_processor=processor)


def batch_info(*reqs: Req) -> SamplingBatchInfo:
    """Of a batch of these requests: what the sampler looks at."""
    rows = [*range(len(reqs))]
    column = torch.ones(len(reqs), 1)
    return SamplingBatchInfo(
        *(column, column[:, 0], column[:, 0], column[:, 0]),
        is_all_greedy=True,
        is_any_greedy=True,
        need_top_p_sampling=False,
        need_top_k_sampling=False,
        need_min_p_sampling=False,
        vocab_size=VOCABULARY,
        has_custom_logit_processor=True,
        custom_params=[req.sampling_params.custom_params for req in reqs],
        custom_logit_processor={0: ProcessorEntry(OnlyToken(), rows, torch.tensor(rows))},
        device="cpu",
    )


@pytest.fixture
def hooked() -> None:
    processors.install(Config("etlru"))


@pytest.mark.usefixtures("hooked")
def test_a_processor_of_a_request_without_parameters_is_given_none() -> None:
    processor = OnlyToken.to_str()
    reqs = [request({"token_id": WANTED}, processor), request(None, processor), request({"tlru": {}}, processor)]
    info = batch_info(*reqs)
    given, logits = [*info.custom_params], torch.zeros(len(reqs), VOCABULARY)
    sampler.apply_custom_logit_processor(logits, info)
    assert logits[0].tolist() == [3.0 if token == WANTED else -torch.inf for token in range(VOCABULARY)]
    assert not logits[1:].any(), "as the model would have answered"
    assert info.custom_params == given
    sampler.apply_custom_logit_processor(logits, info)
    assert reqs[0].sampling_params.custom_params["asked"] == 2, "what it writes down for the next token is there"
    assert [metadata.metadata_of(req).stamp is not None for req in reqs] == [True] * 3


@pytest.mark.usefixtures("hooked")
def test_the_metadata_is_there_again_after_a_processor_that_fails() -> None:
    req = request({"token": WANTED}, OnlyToken.to_str())
    info = batch_info(req)
    given = [*info.custom_params]
    with pytest.raises(KeyError, match="token_id"):
        sampler.apply_custom_logit_processor(torch.zeros(1, VOCABULARY), info)
    assert info.custom_params == given
    assert metadata.metadata_of(req).stamp is not None
