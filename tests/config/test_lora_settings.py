"""Settings of adapters: what contradicts itself is refused in a sentence, and what does nothing is
said."""

from __future__ import annotations

import pytest

from asyncrl.config import Config, ConfigError, load
from asyncrl.config.advice import advice
from asyncrl.config.lora import is_of
from asyncrl.config.ranks import settled_ranks


def config(*sets: str) -> Config:
    return load(None, sets, {})


def refusal(*sets: str) -> str:
    with pytest.raises(ConfigError) as caught:
        config(*sets)
    text = str(caught.value)
    assert text.endswith(".") and text.isprintable()
    return text


OF_ADAPTERS = "model.lora.alpha=8", "model.lora.targets=q_proj", "model.lora.served=adapters"
ALONE = "model.lora.rank=2", "model.lora.served=adapters"
SGLANG = "engine.kind=sglang", "engine.sglang.urls=['http://localhost:2']"


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["model.lora.rank=-1"], "model.lora.rank is -1, and must be a whole number at least 0"),
        (["model.lora.rank=2", "model.lora.alpha=0"], "and must be a number above 0"),
        (["model.lora.dropout=0.1"], "there is no setting model.lora.dropout"),
        (["model.lora.rank=2", "model.lora.targets=[]"], "no layer would have an adapter"),
        (["model.lora.rank=2", "model.lora.targets=['']"], "no layer would have an adapter"),
        (
            ["model.lora.rank=2", "model.lora.targets=['all-linear', 'q']"],
            "already means every layer",
        ),
        (["model.lora.rank=2", "publication.path=direct"], "set path to staged"),
        (["model.lora.rank=2", "publication.dtype=bfloat16"], "set dtype to model"),
        ([*ALONE, "engine.kind=embedded"], "kind embedded decodes with whole weights"),
        ([*ALONE, *SGLANG, "engine.sglang.router=http://localhost:1"], "remove the router"),
        ([*ALONE, *SGLANG, "train.router_replay=true"], "router_replay to false"),
    ],
)
def test_contradictions_are_refused(sets: list[str], said: str) -> None:
    assert said in refusal(*sets)


def test_targets_are_all_one_or_several_and_last_parts_of_names() -> None:
    def targets(text: str) -> tuple[str, ...]:
        return config("model.lora.rank=2", f"model.lora.targets={text}").model.lora.named_targets

    assert targets("all-linear") == ()
    assert targets("q_proj") == ("q_proj",)
    assert targets("['q_proj', 'attn.v_proj']") == ("q_proj", "attn.v_proj")
    assert is_of("attn.v_proj", "layers.0.attn.v_proj") and is_of("lm", "lm")
    assert not is_of("proj", "layers.0.attn.v_proj") and not is_of("attn", "layers.0.attn.v_proj")


def test_without_a_rank_the_others_do_nothing_and_it_is_said() -> None:
    said = {each.key for each in advice(config(*OF_ADAPTERS))}
    assert said == {each.partition("=")[0] for each in OF_ADAPTERS}
    assert not list(advice(config("model.lora.rank=2", "model.lora.alpha=8")))


def test_on_gpus_there_is_one_rank() -> None:
    assert settled_ranks(config("train.device=cuda", "model.lora.rank=2"), 4) == 4
