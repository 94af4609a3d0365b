"""A game as docs/policies.md has it: two runs and a frozen policy that are started, killed, resumed
and ended as one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from train_support import command_lines, end, kill, resume, started, steps_done, train, wait_for

from asyncrl.experience import events as e
from asyncrl.explain import summary
from asyncrl.journal import read

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.explore]

GAME = Path(__file__).parents[2] / "docs" / "examples" / "guessing" / "game.toml"
PAST = """
[[policy]]
name = "past"
frozen = "solver"
draw = "latest"
"""
PLAY = """
    before = await said("past", f"sort {hint[:5]}:")
    won = float(len(guess) > len(before))
    return {"proposer": right * brief, "solver": right, "past": 1.0 - won}
"""
"""In place of what guess.py returns."""
STEPS = 3
SETS = {
    "train.steps": STEPS,
    "train.batch_groups": 2,
    "rollout.group_size": 4,
    "engine.slots": 8,
    "engine.compile": "false",
    "staleness.max_lag": 0,
    "staleness.depth": 0,
    "reward.concurrency": 1,
}
POLICIES = ("proposer", "solver")


def command(model: Path, folder: Path) -> list[str]:
    source = folder.with_name("source")
    source.mkdir()
    (game := source / "game.toml").write_text(GAME.read_text() + PAST)
    play, returned, _ = GAME.with_name("guess.py").read_text().partition("    return {")
    assert returned
    (source / "guess.py").write_text(play + PLAY)
    data = GAME.parents[1] / "own_data" / "prompts.jsonl"
    sets = SETS | {"model.path": model, "run.dir": folder, "task.path": data}
    words = (f"--set={key}={value}" for key, value in sets.items())
    return [sys.executable, "-m", "asyncrl.cli", "train", str(game), *words]


def of_game(folder: Path) -> Iterator[int]:
    """The processes of all its runs that live."""
    for pid, argv in command_lines():
        if any(word.startswith(str(folder)) for word in argv):
            yield pid


def games(run: Path) -> dict[int, tuple[str, float | None]]:
    """The end of each game of a run, by its key, and the reward by its agent; of those in
    what is left of its journal."""
    ends = dict[int, tuple[str, float | None]]()
    keys, rewards = dict[int, int](), dict[int, float]()
    for _, event in read(run / "journal.sqlite"):
        match event:
            case e.Admitted():
                keys |= {event.first + n: event.key + n for n in range(event.size)}
            case e.Rewarded(call=None):
                rewards[event.rollout] = event.reward
            case e.Sealed() if event.rollout in keys:
                ends[keys[event.rollout]] = "sealed", rewards.get(event.rollout)
            case e.Buried() if event.rollout in keys:
                ends[keys[event.rollout]] = "buried", None
    return ends


def test_a_game_is_played_killed_and_resumed_and_both_runs_learn(
    model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "game"
    with started(command(model, folder)) as process:

        def stepped() -> bool:
            assert process.poll() is None, process.communicate()
            return all(steps_done(folder / name) for name in POLICIES)

        wait_for("step", stepped)
        for pid in [process.pid, *of_game(folder)]:
            kill(pid)
        process.wait(60)
        wait_for("quiet", lambda: not [*of_game(folder)])
    begun = {name: steps_done(folder / name) for name in POLICIES}
    assert min(begun.values()) >= 1, begun

    alone = train(resume(folder / "solver"))
    assert alone.returncode == 2 and f"--resume {folder}" in alone.stderr

    with started(resume(folder)) as process:
        code, out, err = end(process)
    assert code == 0, out + err
    assert "solver │" in out and "proposer │" in out
    for name in POLICIES:
        told = summary.read(folder / name / "summary.json")
        assert told.ok and told.steps == STEPS and told.balances()
        points = [json.loads(line) for line in (folder / name / "metrics.jsonl").open()]
        steps = [point for point in points if point["kind"] == "step"]
        assert [point["version"] for point in steps] == [1, 2, 3]
        assert max(point["lag_max"] for point in steps) == 0
    lines = (folder / "past" / "draws.jsonl").read_text().splitlines()
    drawn = [line for line in map(json.loads, lines) if line["type"] == "Drawn"]
    assert len({line["group"] for line in drawn}) == len(drawn) >= 2 * STEPS
    assert {line["version"] for line in drawn} == {0}  # no checkpoint came before the last step
    host, guest = (games(folder / name) for name in POLICIES)
    both = host.keys() & guest.keys()
    assert len(both) >= 8
    for key in both:
        (ended, mine), (its_end, reward) = host[key], guest[key]
        assert ended == its_end
        # as the game has it: a brief hint counts whole for both, a long one half for the proposer
        assert reward is None or mine in (reward, reward / 2)
