"""The settings of vLLM: those that servers have in common, and what only SGLang has."""

from __future__ import annotations

import pytest

from asyncrl.config import ConfigError, load
from asyncrl.config.gpus import gpus_of

VLLM = "engine.kind=vllm"
LAUNCH = 'engine.vllm.launch=["/opt/vllm/bin/python"]'
URLS = 'engine.vllm.urls=["http://a:8000", "http://b:8000"]'
TWO, HOST = "rollout.actors=2", "engine.vllm.host=trainer"


def test_what_is_whole_passes() -> None:
    found = load(None, [VLLM, LAUNCH, "engine.vllm.tensor_parallel=2"], {}).engine.servers
    assert found is not None and found.table == "engine.vllm" and found.by_broadcast
    assert found.settings.tensor_parallel == 2 and found.router == ""
    load(None, [VLLM, URLS, TWO, HOST], {})
    load(None, [VLLM, LAUNCH, 'engine.vllm.arguments=["--config-format=hf"]'], {})
    assert load(None, [LAUNCH], {}).engine.servers is None


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ((VLLM,), ("engine.vllm.launch", "engine.vllm.urls", "set launch for servers")),
        ((VLLM, 'engine.sglang.launch=["python"]'), ("engine.vllm.launch",)),
        ((VLLM, LAUNCH, URLS, TWO), ("engine.vllm.launch", "engine.vllm.urls")),
        ((VLLM, URLS, HOST), ("engine.vllm.urls", "set rollout.actors to 2")),
        ((VLLM, URLS, TWO), ("engine.vllm.host", "would fetch weights from its own loopback")),
        ((VLLM, 'engine.vllm.urls=["a:1"]', HOST), ("engine.vllm.urls", "http://host:port")),
        ((VLLM, LAUNCH, "engine.vllm.backend=nccl"), ("engine.vllm.device", "gloo")),
        (
            (VLLM, LAUNCH, "engine.vllm.api_key_file=key"),
            ("makes a key for servers that it starts",),
        ),
        ((VLLM, LAUNCH, 'engine.vllm.arguments=["--uds=/x"]'), ("engine.vllm.arguments", "--uds")),
        ((VLLM, LAUNCH, "publication.path=direct"), ("publication.path", "engine.kind")),
        ((VLLM, LAUNCH, "staleness.finish_on=own"), ("finish_on", "mixed")),
        ((VLLM, LAUNCH, "evaluation.weights=ema", "train.ema=0.9"), ("evaluation.weights",)),
        (("engine.vllm.router=http://r:1",), ("engine.vllm.router",)),
        (("engine.vllm.interrupt=keep",), ("engine.vllm.interrupt",)),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    sets: tuple[str, ...], words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as error:
        load(None, sets, {})
    assert all(word in str(error.value) for word in words), str(error.value)


def test_servers_and_senders_have_gpus_of_their_own() -> None:
    cuda = ["engine.vllm.device=cuda", "engine.vllm.backend=nccl", "engine.vllm.tensor_parallel=2"]
    gpus = gpus_of(load(None, [VLLM, LAUNCH, TWO, "train.device=cuda", *cuda], {}))
    assert (gpus.trainer, gpus.servers, gpus.senders) == ((0,), ((1, 2), (3, 4)), (5, 6))
