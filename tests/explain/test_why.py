"""`asyncrl why`: for each status that a run gets into, the sentence that a person needs."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from look_support import step

from asyncrl.cli import main
from asyncrl.config import ConfigError
from asyncrl.explain import run_status, summary
from asyncrl.explain.curve import line_of
from asyncrl.explain.diagnosis import diagnose
from asyncrl.explain.recent_outcomes import RecentOutcomes
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.run_status import (
    ActorStatus,
    AwaitedRollout,
    EpisodeCounts,
    FailedEpisodes,
    GroupCounts,
    JournalStatus,
    PublicationStatus,
    RunStatus,
    TagCounts,
)
from asyncrl.explain.sft_figures import SftFigures
from asyncrl.explain.summary import RolloutTotals, Summary, TokenTotals
from asyncrl.explain.why import answer, why
from asyncrl.messages import Busy, Wait
from asyncrl.runtime.run_dir import GAME, LAST_STATUS, METRICS, SUMMARY

RUN = Path("runs/a")
BUSY = {"trainer": {"command": 0.1}, "rollout": {"requests": 0.05}}
STARVED = {"trainer": {"command": 0.8}, "rollout": {"requests": 0.05}}
FULL = {"trainer": {"command": 0.02}, "rollout": {"requests": 0.7}}


def actor(name: str, **changes: Any) -> ActorStatus:
    settings = {
        "name": name,
        "role": name.partition("-")[0],
        "here": True,
        "incarnation": 0,
        "pid": 77,
        "seconds": 0.4,
    }
    if name.startswith("rollout"):
        settings |= {"version": 3, "holds": 8, "streamed_s": 0.2}
    return ActorStatus(**(settings | changes))  # type: ignore[arg-type]


def standing(**changes: Any) -> RunStatus:
    """A run of two engines in the middle of training; what is changed is said."""
    settings: dict[str, Any] = {
        "at": 1000.0,
        "seconds": 500.0,
        "phase": "run",
        "step": 12,
        "steps": 100,
        "committed": 12,
        "token_s": 0.1,
        "verdict_s": 0.5,
        "step_s": 2.0,
        "stall_s": 300.0,
        "report_s": 1.0,
        "window_s": 10.0,
        "idle": BUSY,
        "generated_per_s": 1234.0,
        "trained_per_s": 1200.0,
        "actors": [
            actor("trainer-0", holds=16),
            actor("rollout-0"),
            actor("rollout-1"),
            actor("reward-0", holds=2),
        ],
        "waits": [Wait("progress", "coordinator", 0.3, 300.0)],
        "publication": None,
        "evaluating": None,
        "rollouts": {"waiting": 3, "leased": 16, "sealed": 2, "judged": 4, "taken": 16},
        "groups": GroupCounts(live=5, max_live=8, complete=1, filtered=0, patience=512),
        "awaited": [
            AwaitedRollout(
                rollout=41, holder="rollout-1", attempt=1, tokens=20, seconds=9.0, deadline_s=30.0
            )
        ],
        "lease_p95_s": 4.0,
        "lease_deadline_s": 30.0,
        "pump_s": 0.001,
        "tokens": TokenTotals(),
        "ledger": RolloutTotals(),
        "journal": JournalStatus(appended=900, durable=890, pending_bytes=400),
        "restarts": {},
    }
    return RunStatus(**(settings | changes))


def absent(s: RunStatus, name: str, **changes: Any) -> list[ActorStatus]:
    return [actor(name, here=False, **changes) if a.name == name else a for a in s.actors]


S = standing()
STILL = {"token_s": 60.0, "verdict_s": 61.0, "step_s": 62.0}
SITUATIONS: dict[str, tuple[RunStatus, list[str]]] = {
    "both sides work": (S, ["Both sides work"]),
    "a long checkpoint": (
        standing(**STILL, actors=[actor("trainer-0", holds=16, busy=Busy("checkpoint", 400.0))]),
        ["The trainer has been at one checkpoint for 7 min", "trainer is the slow side"],
    ),
    "steps are taken again": (
        standing(phase="ready", actors=[actor("trainer-0", busy=Busy("optimizer step", 60.0))]),
        ["The trainer has been at one optimizer step for 60 s"],
    ),
    "generation is slow": (
        standing(idle=STARVED, rollouts={"leased": 16, "sealed": 1}),
        [
            "generation is the slow side",
            "16 rollouts are with engines",
            "1,234 tokens/s",
            "rollout 41 with rollout-1",
        ],
    ),
    "verifiers are slow": (
        standing(idle=STARVED, rollouts={"leased": 4, "sealed": 30}),
        ["verifiers are the slow side", "30 answers wait", "2 of them with reward-0"],
    ),
    "everything is filtered": (
        standing(idle=STARVED, groups=GroupCounts(live=5, max_live=8, filtered=90, patience=512)),
        ["The last 90 groups were all filtered", "512 end the run"],
    ),
    "an evaluation holds a publication": (
        standing(idle=STARVED, step=13, committed=12, evaluating=12, publication=None),
        ["The evaluation of version 12 holds the publication of version 13", "task.eval_size"],
    ),
    "a judge is stuck": (
        standing(idle=STARVED, verdict_s=95.0, rollouts={"leased": 4, "sealed": 30}),
        ["No verdict has come for 95 s", "30 answers wait", "judge.url"],
    ),
    "all rewards are 0": (
        standing(idle=STARVED, recent=RecentOutcomes(rewards=200, zeros=200)),
        ["None of the last 200 rewards is above 0", "task.verifier"],
    ),
    "agents fail for one reason": (
        standing(
            idle=STARVED,
            recent=RecentOutcomes(attempts=40, failed_attempts={"raised": 39, "exit": 1}),
        ),
        ["100% of the last 40 attempts of agents failed (39 raised, 1 exit;", "agent.run"],
    ),
    "an engine is gone and restarting": (
        standing(idle=STARVED, actors=absent(S, "rollout-1", seconds=7.0), restarts={"rollout": 2}),
        ["only rollout-0 generates", "rollout-1 has been gone for 7 s", "2 restarts so far"],
    ),
    "the only reward actor is gone": (
        standing(idle=STARVED, actors=absent(S, "reward-0", seconds=3.0), restarts={"reward": 1}),
        ["no actor judges", "reward-0 has been gone for 3 s"],
    ),
    "an engine streams nothing": (
        standing(
            idle=STARVED,
            **STILL,
            actors=[actor("trainer-0"), actor("rollout-0", streamed_s=60.0), actor("reward-0")],
        ),
        ["rollout-0 has streamed nothing for 60 s", "holding 8 rollouts"],
    ),
    "admission is full, the trainer is slow": (
        standing(
            idle=FULL,
            rollouts={"taken": 40, "judged": 24},
            groups=GroupCounts(live=8, max_live=8, complete=3, patience=512),
        ),
        [
            "admission is full: 8 groups of at most 8",
            "3 of them wait for the trainer",
            "40 rollouts are with it",
            "the trainer is the slow side",
        ],
    ),
    "admission is full, with groups for those that are filtered": (
        standing(
            idle=FULL,
            rollouts={"taken": 40, "judged": 24},
            groups=GroupCounts(live=20, max_live=8, complete=3, patience=512),
        ),
        ["admission is full: 20 groups of at most 8 that pass the filter are live"],
    ),
    "admission is full, verifiers are slow": (
        standing(
            idle=FULL,
            rollouts={"sealed": 50, "taken": 4},
            groups=GroupCounts(live=8, max_live=8, patience=512),
        ),
        [
            "admission is full",
            "50 of their answers wait for a verdict",
            "verifiers are the slow side",
        ],
    ),
    "all agents fail": (
        standing(
            failing=[
                FailedEpisodes(
                    name="agents-0",
                    episodes=12,
                    reason="raised: KeyError 'answer' in my_agent.py:9",
                )
            ]
        ),
        ["All of the last 12 episodes of agents-0 failed", "KeyError 'answer' in my_agent.py:9"],
    ),
    "agents are slow, and have no more room": (
        standing(
            idle={"trainer": {"command": 0.9}, "rollout": {"requests": 0.4}},
            rollouts={"leased": 2, "begun": 64},
            episodes=EpisodeCounts(live=64, thinking=41, most=90),
        ),
        [
            "agents are the slow side",
            "41 of 64 episodes are with their agents",
            "engines could serve 90 at once",
            "raise agent.concurrency or staleness.depth",
        ],
    ),
    "agents are slow, and engines are idle": (
        standing(
            idle=FULL,
            rollouts={"begun": 64, "taken": 3},
            episodes=EpisodeCounts(live=64, thinking=60, most=64),
        ),
        ["Rollout actors are idle", "60 of 64 episodes are with their agents", "more begin"],
    ),
    "agents have the ball, and engines are at work, is no news": (
        standing(idle=STARVED, episodes=EpisodeCounts(live=64, thinking=60, most=64)),
        ["generation is the slow side"],
    ),
    "a trainer that computes for very long": (
        standing(
            idle=FULL,
            **STILL,
            rollouts={"taken": 64},
            groups=GroupCounts(live=8, max_live=8, patience=512),
        ),
        ["the trainer is the slow side", "Its last step was 62 s ago"],
    ),
    "engines wait for weights, and nothing is under way": (
        standing(idle={"trainer": {"command": 0.0}, "rollout": {"weights": 0.9}}),
        ["wait for weights", "the trainer is still at its step"],
    ),
    "a publication waits for engine 3": (
        standing(
            publication=PublicationStatus(
                number=13,
                version=12,
                phase="verify",
                waiting_for="engine 3",
                seconds=20.0,
                left_s=40.0,
            )
        ),
        [
            "Publication 13, of version 12, waits for engine 3",
            "20 s so far, is in verify",
            "in 40 s",
        ],
    ),
    "a publication that is under way is no news": (
        standing(
            publication=PublicationStatus(
                number=13,
                version=12,
                phase="verify",
                waiting_for="engine 3",
                seconds=0.2,
                left_s=59.0,
            )
        ),
        ["Both sides work"],
    ),
    "the journal waits for the disk": (
        standing(
            journal=JournalStatus(
                appended=9,
                durable=1,
                pending_bytes=2**20,
                trouble="there is no room on the disk of /runs",
            )
        ),
        ["waits for the disk", "no room on the disk of /runs", "1.0 MiB wait"],
    ),
    "an actor is connected and silent": (
        standing(
            actors=[
                actor("trainer-0"),
                actor("rollout-0", seconds=40.0, pid=4711),
                actor("reward-0"),
            ]
        ),
        ["rollout-0 has not reported for 40 s", "process 4711"],
    ),
    "starting": (
        standing(
            phase="init",
            committed=None,
            actors=absent(S, "trainer-0", incarnation=-1, seconds=33.0),
        ),
        ["waited for trainer-0 to connect for 33 s"],
    ),
    "a large cluster is starting": (
        standing(
            phase="init",
            committed=None,
            actors=[
                actor(f"rollout-{n}", here=False, incarnation=-1, seconds=9.0) for n in range(100)
            ],
        ),
        ["waited for rollout-0, rollout-1, rollout-2, rollout-3 and 96 more to connect"],
    ),
    "the first publication": (
        standing(
            phase="ready",
            committed=None,
            publication=PublicationStatus(
                number=1,
                version=0,
                phase="transfer",
                waiting_for="the trainer",
                seconds=1.0,
                left_s=59.0,
            ),
        ),
        ["Publication 1, of version 0, waits for the trainer"],
    ),
    "draining": (
        standing(phase="drain", waits=[Wait("parked rollouts", "coordinator", 1.0, 300.0)]),
        ["It is draining, and waits for coordinator for parked rollouts"],
    ),
    "draining, beside a publication that has just begun": (
        standing(
            phase="drain",
            idle={"trainer": {"command": 0.0}, "rollout": {"weights": 0.9}},
            publication=PublicationStatus(
                number=3,
                version=2,
                phase="transfer",
                waiting_for="the trainer",
                seconds=0.2,
                left_s=59.0,
            ),
            waits=[Wait("replies", "coordinator", 0.2, 60.0)],
        ),
        ["It is draining, and waits for coordinator for replies"],
    ),
    "draining, beside a publication that takes long": (
        standing(
            phase="drain",
            publication=PublicationStatus(
                number=3,
                version=2,
                phase="transfer",
                waiting_for="the trainer",
                seconds=20.0,
                left_s=40.0,
            ),
        ),
        ["Publication 3, of version 2, waits for the trainer"],
    ),
    "an evaluation is all there is": (
        standing(
            idle=STARVED,
            rollouts={"leased": 8, "sealed": 2},
            groups=GroupCounts(max_live=8, patience=512),
            evaluating=25,
        ),
        ["until version 25 is evaluated", "10 answers to come"],
    ),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_culprit_is_named(name: str) -> None:
    found, said = SITUATIONS[name]
    sentence = diagnose(found)
    assert all(part in sentence for part in said), sentence
    assert sentence.endswith(".") and "\n" not in sentence


def test_no_two_situations_are_explained_alike() -> None:
    sentences = [
        diagnose(found) for name, (found, _) in SITUATIONS.items() if "no news" not in name
    ]
    assert len(set(sentences)) == len(sentences)


def test_a_live_run_says_which_side_is_idle() -> None:
    sentences = answer(standing(idle=STARVED), lives=True, age_s=0.5, stalled=False, run=RUN)
    assert sentences[0] == "The run trains: 12 of 100 steps in 8 min, as of 500 ms ago."
    assert (
        sentences[1]
        == "Over the last 10 s the trainer was idle for 80% of its time, and rollout actors for 5%."
    )
    assert "generation is the slow side" in sentences[2] and len(sentences) == 3


def test_a_supervised_run_has_the_trainer_alone() -> None:
    at_work = standing(sft=SftFigures(loss=1.0), idle={"trainer": {}}, publication=None)
    assert diagnose(at_work).startswith("The trainer computes, and waits for nothing")
    waits = msgspec.structs.replace(at_work, idle={"trainer": {"command": 0.9}})
    assert diagnose(waits).startswith("The trainer waits for the coordinator, which packs")
    measures = msgspec.structs.replace(at_work, evaluating=7)
    assert diagnose(measures) == "The trainer measures the held-out loss of version 7."
    lost = msgspec.structs.replace(
        at_work, actors=[actor("trainer-0", role="trainer", here=False, seconds=3.0)]
    )
    assert diagnose(lost).startswith("trainer-0 was lost")
    ended = {"phase": "stop", "ok": False, "actors": absent(S, "trainer-0")}
    assert "trainer-0" not in diagnose(standing(**ended, reason="no group passed the filter"))
    assert "trainer-0 was lost" in diagnose(standing(**ended, reason="trainer-0 was lost"))


def test_rollouts_that_a_rule_ended_are_said_by_reason() -> None:
    pruned = {"pruned_longest": 3, "pruned_mine": 12}
    found = standing(ledger=RolloutTotals(90, 40, pruned=pruned))
    sentences = answer(found, lives=True, age_s=0.5, stalled=False, run=RUN)
    said = "A rule has ended 15 of 90 rollouts early: 12 pruned_mine, 3 pruned_longest."
    assert said in sentences


def test_leases_of_prompts_that_prefer_a_tag_are_said() -> None:
    found = standing(preferred={"long_prefill": TagCounts(there=1200, elsewhere=34)})
    assert (
        "Of 1,234 leases of prompts that prefer long_prefill, 1,200 went to rollout actors with "
        "this tag; the others found no room there."
    ) in answer(found, lives=True, age_s=0.5, stalled=False, run=RUN)


def test_what_the_last_step_raised_is_said_last() -> None:
    alarms = [
        "Engine and trainer disagree about the same weights: k3 is 0.3.",
        "The sample is small.",
    ]
    how: dict[str, Any] = {"lives": True, "age_s": 0.5, "stalled": False, "run": RUN}
    plain, alarmed = answer(S, **how), answer(standing(alarms=alarms), **how)
    assert alarmed == plain + alarms
    over = standing(alarms=alarms, ok=True, phase="stop", reason="all 100 steps are done")
    assert len(answer(over, **how)) == 1, "of a run that ended well the summary has them"


def test_an_alarm_reaches_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_at(
        tmp_path / "run", standing(alarms=["The policy has moved away from what it trains on."])
    )
    assert main(["why", str(run)]) == 0
    assert capsys.readouterr().out.endswith("The policy has moved away from what it trains on.\n")


@pytest.mark.parametrize("idle", [BUSY, STARVED])
def test_an_engine_that_was_removed_is_named_and_blamed_for_nothing(idle: Any) -> None:
    actors = absent(S, "rollout-1", removed="died", seconds=4000.0)
    without = standing(idle=idle, rollouts={"leased": 16}, actors=actors)
    said = answer(without, lives=True, age_s=0.0, stalled=False, run=RUN)
    assert said[-1] == "The run continues without rollout-1, which died."
    assert diagnose(without) == diagnose(standing(idle=idle, rollouts={"leased": 16}))


@pytest.mark.parametrize(
    ("changes", "how", "said"),
    [
        (
            {"ok": True, "phase": "stop", "reason": "all 100 steps are done"},
            (False, 60.0, False),
            ["ended 60 s ago: all 100 steps are done"],
        ),
        (
            {"ok": False, "phase": "stop", "reason": "the trainer was lost"},
            (False, 5.0, False),
            ["failed 5 s ago", "the trainer was lost"],
        ),
        (
            {},
            (False, 7200.0, False),
            ["was killed after 12 of 100 steps", "2.0 h ago", "--resume runs/a"],
        ),
        ({}, (True, 45.0, False), ["coordinator has not reported for 45 s"]),
        (
            STILL | {"reason": "no token and no step for 60 s (supervision.stall_s)"},
            (False, 5.0, True),
            ["stalled after 12 of 100 steps", "no token and no step for 60 s"],
        ),
        ({"phase": "init"}, (True, 0.1, False), ["The run starts"]),
        ({"phase": "drain"}, (True, 0.1, False), ["The run drains"]),
    ],
)
def test_it_says_how_the_run_stands(
    changes: dict[str, Any], how: tuple[bool, float, bool], said: list[str]
) -> None:
    lives, age_s, stalled = how
    sentences = answer(standing(**changes), lives=lives, age_s=age_s, stalled=stalled, run=RUN)
    assert all(part in sentences[0] for part in said), sentences
    assert len(sentences) <= 3


def run_at(path: Path, found: RunStatus | None, name: str = "status.json") -> Path:
    path.mkdir()
    (path / "run.toml").write_text("")
    (path / "lock").touch()
    if found is not None:
        run_status.write(found, path / name)
    return path


def test_a_situation_is_read_as_it_was_written(tmp_path: Path) -> None:
    for number, (found, _) in enumerate(SITUATIONS.values()):
        path = tmp_path / f"{number}.json"
        run_status.write(found, path)
        assert run_status.read(path) == found
    assert {path.suffix for path in tmp_path.iterdir()} == {".json"}


def test_the_lock_tells_a_live_run_from_a_killed_one(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run", S)
    assert "was killed" in why(RunFiles(run), 1001.0)[0]
    with (run / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert why(RunFiles(run), 1001.0)[0].startswith("The run trains")
    assert "was killed" in why(RunFiles(run), 1001.0)[0]


def test_a_run_that_could_not_write_how_it_stood_is_told_by_what_it_has_written(
    tmp_path: Path,
) -> None:
    """Its disk was full when it was started again: the status is that of the life before, or there
    is none, and the curve has its steps."""
    run = run_at(tmp_path / "run", S, LAST_STATUS)
    assert "was killed after 12 of 100 steps" in why(RunFiles(run), 1001.0)[0]
    (run / METRICS).write_bytes(b"".join(line_of(step(version)) for version in range(1, 17)))
    assert "was killed after 16 of 100 steps" in why(RunFiles(run), 1001.0)[0]
    (run / METRICS).unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5000))
        assert f"The disk of {run} is full" in why(RunFiles(run), 1001.0)[1]
    ended = Summary(ok=False, reason="no space: make room, and resume the run", steps=13, seconds=1)
    summary.write(ended, run / SUMMARY)
    [first, *_] = why(RunFiles(run), 1001.0)
    assert "failed" in first and "13 of 100 steps: no space: make room" in first
    (run / LAST_STATUS).unlink()
    (run / METRICS).write_bytes(b"".join(line_of(step(version)) for version in (1, 2, 3)))
    (run / ".status.json.0123456789abcdef.partial").touch()
    [said] = why(RunFiles(run), 1001.0)
    assert "ended after 3 steps: no space: make room, and resume the run" in said
    summary.write(msgspec.structs.replace(ended, ok=True, reason="it did all"), run / SUMMARY)
    [said] = why(RunFiles(run), 1001.0)
    assert "after 3 steps: it did all. Its last state is not in" in said and "resume" not in said
    with (run / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run_status.write(S, run / LAST_STATUS)
        with pytest.raises(ConfigError, match="it is starting"):
            why(RunFiles(run), 1001.0)


@pytest.mark.parametrize(
    ("free", "flag", "left", "said"),
    [
        (5000, 0, 7, "is full: make room"),
        (2**40, os.ST_RDONLY, 7, "is read-only: mount it so that it is writable"),
        (2**40, 0, 0, "is full, as it takes no further file (df -i): remove some"),
    ],
)
def test_a_disk_that_was_full_before_the_run_began_is_named_with_what_to_do(
    free: int, flag: int, left: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logs are empty then, and to see them was the advice."""
    run = run_at(tmp_path / "run", None)
    with pytest.raises(ConfigError, match="ended before it began: see its logs"):
        why(RunFiles(run), 1001.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    disk = SimpleNamespace(f_flag=flag, f_files=9, f_favail=left)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    [sentence] = why(RunFiles(run), 1001.0)
    assert sentence == (
        f"The run ended before it began; the disk of {run} {said}, and begin it with asyncrl train "
        f"--resume {run}."
    )
    with pytest.raises(ConfigError, match=re.escape(f"the disk of {run} {said}, and begin it")):
        _ = RunFiles(run).status
    with (run / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=re.escape("starting, or preparing its model, and")):
            why(RunFiles(run), 1001.0)
    run_status.write(standing(ok=False, reason="no room"), run / "status.json")
    with (run / "lock").open("a") as lock:  # of a run that lives, it may be why it says nothing
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert why(RunFiles(run), 1001.0)[1].endswith(f"{said} before it can continue.")
    first, second, *_ = why(RunFiles(run), 1001.0)
    assert "The run failed" in first and second.endswith(f"{said} before it can continue.")
    run_status.write(standing(ok=True, reason="it did all"), run / "status.json")
    assert len(why(RunFiles(run), 1001.0)) == 1


def test_a_stall_dump_is_what_counts(tmp_path: Path) -> None:
    run = run_at(tmp_path / "run", standing(at=1010.0, ok=False, reason="it stalled"))
    run_status.write(standing(**STILL), run / "stall.json")
    assert "stalled" in why(RunFiles(run), 1020.0)[0]


def bad(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    runs = {
        name: run_at(tmp_path / name, None)
        for name in ("none yet", "empty", "json", "binary", "deep", "wrong", "a directory")
    }
    for name, data in {
        "empty": b"",
        "json": b"{}",
        "binary": b"\xff\x00",
        "deep": b"[" * 100_000,
        "wrong": msgspec.json.encode(S).replace(b'"step":12', b'"step":"x"'),
    }.items():
        (runs[name] / "status.json").write_bytes(data)
    (runs["a directory"] / "status.json").mkdir()
    (tmp_path / "no run").mkdir()
    said = dict.fromkeys(("empty", "json", "binary", "deep", "wrong"), "damaged")
    said |= {"none yet": "has no status yet", "a directory": "cannot be read"}
    cases = {name: (run, said[name]) for name, run in runs.items()}
    return cases | {
        "no run": (tmp_path / "no run", "run.toml"),
        "nowhere": (tmp_path / "nowhere", "no such directory"),
    }


def test_bad_input_is_one_sentence_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, (run, said) in bad(tmp_path).items():
        assert main(["why", str(run)]) == 2, name
        out, err = capsys.readouterr()
        assert (
            out == ""
            and err.startswith("asyncrl: ")
            and err.count("\n") == 1
            and said in err
            and str(run) in err
        ), (name, err)


def test_the_verb_prints_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_at(tmp_path / "run", standing(idle=STARVED))
    assert main(["why", str(run)]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "was killed" in out and "generation is the slow side" in out


def test_a_game_answers_for_each_policy_and_says_which_one_the_others_wait_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without a name, where the newest run is a game's, and with a policy that is damaged."""
    game = tmp_path / "runs" / "guess"
    game.mkdir(parents=True)
    (game / GAME).write_text("{}")
    assert main(["why", str(game)]) == 2  # without a run
    assert "no policy" in capsys.readouterr().err
    busy, halved = STARVED | {"rollout": {"requests": 0.02}}, {role: {"own": 0.5} for role in BUSY}
    at = time.time() + 60.0
    solver = run_at(game / "solver", standing(at=at, idle=busy))
    proposer = run_at(game / "proposer", standing(at=at, idle=halved))
    monkeypatch.chdir(tmp_path)
    with (solver / "lock").open("a") as one, (proposer / "lock").open("a") as other:
        for lock in (one, other):
            fcntl.flock(lock, fcntl.LOCK_EX)
        for words in (["why", str(game)], ["why"]):
            assert main(words) == 0
            first, *rest = capsys.readouterr().out.splitlines()
            assert first == (
                "The game waits for solver most: its rollout actors are idle for 2% of the time."
            )
            assert rest[0].startswith("proposer │ The run trains")
            assert any(line.startswith("solver │ The run trains") for line in rest)
    assert main(["why", str(game)]) == 0
    out = capsys.readouterr().out
    assert "waits for solver most" not in out and f"--resume {game}." in out
    assert main(["why", str(solver)]) == 0  # a policy alone cannot be resumed
    assert f"--resume {game}." in capsys.readouterr().out
    (proposer / "status.json").write_text("{")
    assert main(["why", str(game)]) == 0
    out = capsys.readouterr().out
    assert "proposer │ " in out and "damaged" in out and "solver │ The run" in out
    for verb in ("report", "rollouts", "top"):
        assert main([verb, str(game)]) == 2
        assert "the directory of a game" in capsys.readouterr().err
    assert main(["runs"]) == 0
    out = capsys.readouterr().out
    assert "guess/solver" in out and "guess/proposer" in out


def test_an_actor_is_silent_after_three_reports_and_not_before() -> None:
    for report_s, silent in [(20.0, False), (10.0, True), (1.0, True)]:
        actors = [actor("trainer-0"), actor("rollout-0", seconds=40.0), actor("reward-0")]
        said = diagnose(standing(report_s=report_s, actors=actors))
        assert ("not reported" in said) is silent
