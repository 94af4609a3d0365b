"""Real servers on machines that join, which are this one: they start without the model's files,
and end with their machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from served_families import FAMILIES, KINDS, LINEAR, built
from train_support import (
    actors,
    command,
    command_lines,
    end,
    joins,
    kill,
    started,
    steps_done,
    wait_for,
)

from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.explain import summary
from asyncrl.runtime.run_dir import INITIAL, JOIN_TOKEN, SUMMARY

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.explore]

BEGUN_S = 600.0
STEPS = 6


def servers(folder: Path) -> list[int]:
    """Processes that were given this machine's model."""
    model = str(folder / INITIAL)
    return [pid for pid, argv in command_lines() if model in argv]


@pytest.mark.parametrize("path", ["staged", pytest.param("direct", marks=pytest.mark.soak)])
def test_a_machine_brings_its_server_and_takes_it_along(
    sglang_launch: tuple[str, ...], tmp_path: Path, path: str
) -> None:
    """The model is Qwen3.5, with linear attention: every byte of each version that the server does
    not compute itself is compared."""
    run, one, two, model = (tmp_path / name for name in ("run", "one", "two", "m"))
    built(FAMILIES["Qwen3.5"], KINDS["sglang"]).save_pretrained(model)
    write_tokenizer(model)
    argv = command(
        model,
        run,
        cluster__kind="agents",
        cluster__agents=2,
        engine__kind="sglang",
        engine__sglang__launch=[*sglang_launch],
        engine__sglang__arguments=[*LINEAR["sglang"]],
        engine__context_tokens=128,
        publication__path=path,
        rollout__actors=2,
        rollout__max_new_tokens=4,  # linear attention is interpreted there: 0.2 s of a core a token
        rollout__group_size=2,
        task__eval_size=2,
        train__steps=STEPS,
    )
    token = run / JOIN_TOKEN
    with started(argv) as launcher:
        wait_for("join token", token.exists)
        with (
            started(joins(token, "one", one)) as first,
            started(joins(token, "two", two)) as second,
        ):
            wait_for("a step", lambda: steps_done(run) >= 1, BEGUN_S)
            actors(run, "coordinator-0", "trainer-0", "reward-0")
            wait_for("both servers", lambda: servers(one) and servers(two))
            assert not servers(run)
            assert not list((one / INITIAL).glob("*.safetensors"))
            kill(first.pid)
            wait_for("the end of its server", lambda: not servers(one))
            code, shown, said = end(launcher)
            assert code == 0, shown + said
            ended, _, _ = end(second)
    assert ended == 0
    wait_for("the end of the other one", lambda: not servers(two))
    told = summary.read(run / SUMMARY)
    assert told.balances() and told.restarts in ({}, {"rollout": 1})
    assert told.steps == STEPS and told.publication.count > STEPS, "each version was verified"
    assert "Machine one is lost, with 1 actors" in shown
