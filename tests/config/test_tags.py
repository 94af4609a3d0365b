"""Tags: what prompts prefer, an actor has."""

from __future__ import annotations

import pytest

from asyncrl.config import ConfigError, load
from asyncrl.config.derived import derived
from asyncrl.config.tags import need_of

NEEDS = ("rollout.actors=3", 'rollout.needs=["long_prefill","","long_decode"]')
MIX = ("task.weights={read=0.5,write=0.5}",)


def refusal(*sets: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load(None, sets, {})
    said = str(refused.value)
    assert said.endswith(".") and "\n" not in said
    return said


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (['task.prefers="fast"'], "no actor has a tag: add 'fast' to needs, or remove prefers"),
        ([*NEEDS, 'task.prefers="fast"'], "actors have long_decode, long_prefill: add 'fast'"),
        (
            [*NEEDS, *MIX, 'task.mix={read={prefers="fast"},write={}}'],
            "the task 'read' prefers 'fast', and actors have long_decode, long_prefill",
        ),
        (['rollout.needs=["a","b"]'], "more needs than actors: raise actors"),
        ([*NEEDS, "cluster.kind=ray"], "agents that Ray starts have no tags"),
        (['rollout.needs=["a b"]'], "list of strings, each of at most 32 letters"),
        ([f'task.prefers="{33 * "x"}"'], "a string of at most 32 letters, digits, - and _"),
    ],
)
def test_a_tag_that_nobody_has_is_one_sentence(sets: list[str], said: str) -> None:
    assert said in refusal(*sets)


def test_check_shows_who_has_a_tag_and_who_prefers_it() -> None:
    mix = 'task.mix={read={prefers="long_prefill"},write={}}'
    config = load(None, [*NEEDS, *MIX, mix], {})
    assert [need_of(config, index) for index in range(4)] == ["long_prefill", "", "long_decode", ""]
    assert [row[1:] for row in derived(config, 2) if row.name == "tag"] == [
        ("long_prefill", "rollout-0; prompts of read go there first"),
        ("long_decode", "rollout-2; no prompt prefers it"),
    ]
    joined = load(None, [*NEEDS, "cluster.kind=agents", 'task.prefers="long_decode"'], {})
    [_, row] = [row for row in derived(joined, 2) if row.name == "tag"]
    assert row.meaning == "rollout-2, on a machine with this tag; all prompts go there first"
