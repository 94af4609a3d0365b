"""The trainer's canary: once a version, of the weights that engines are sent."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.bundled.bundled_model import new_model, write_tokenizer
from asyncrl.engines import canary
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.models import empty_model, model_with
from asyncrl.weightsync import trainer_canary
from asyncrl.weightsync.narrowed import SentWeights
from asyncrl.weightsync.trainer_canary import TrainerCanary


def opened(folder: Path, published: torch.dtype, engine: torch.dtype) -> TrainerCanary:
    new_model(0).save_pretrained(folder)
    write_tokenizer(folder)
    return TrainerCanary(
        partial(empty_model, folder, engine), SentWeights(published), Tokenizer(folder)
    )


async def test_it_is_computed_once_for_each_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = opened(tmp_path, torch.float32, torch.float32)
    computed = list[Any]()
    reference = canary.reference

    def counted(*given: Any) -> list[float]:
        computed.append(given)
        return reference(*given)

    monkeypatch.setattr(trainer_canary.canary, "reference", counted)
    model = new_model(1)
    first = [await found.of(1, model) for _ in range(3)]
    second = await found.of(2, new_model(2))
    assert len(computed) == 2 and first == [first[0]] * 3 and second != first[0]
    text = computed[0][2]
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(text).long()[None]).logits[0, :-1]
    scores = torch.log_softmax(logits.float(), -1)[np.arange(len(text) - 1), text[1:]]
    assert first[0] == pytest.approx(scores.tolist(), abs=1e-5)


async def test_it_is_of_rounded_weights_where_those_are_sent_and_of_a_model_without_buffers(
    tmp_path: Path,
) -> None:
    found = opened(tmp_path, torch.bfloat16, torch.bfloat16)
    model = new_model(1)
    gathered = model_with(dict(model.named_parameters()), model.config, torch.float32)
    scores = await found.of(1, gathered)
    rounded = new_model(1)  # but for its buffers, which nobody sends
    for parameter in rounded.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    own = {name: parameter.detach() for name, parameter in rounded.named_parameters()}
    assert scores == canary.reference(rounded, own, found.text)
