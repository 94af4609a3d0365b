"""`asyncrl train --resume` after SIGKILL of everything, with real processes: nothing is lost,
nothing is trained twice, and at lag 0 the weights are those of a run that nobody interrupted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import kill_matrix
import msgspec
import numpy as np
import pytest
import warm_process
from train_support import (
    all_sealed,
    command,
    end,
    everything,
    followed,
    processes,
    resume,
    started,
    steps_done,
    train,
    wait_for,
)

from asyncrl import journal
from asyncrl.experience import events as e
from asyncrl.explain import run_status, summary
from asyncrl.explain.curve import Curve, StepPoint, read
from asyncrl.runtime.run_dir import JOURNAL, METRICS, MODEL, PACKED, RUN_TOML, STATUS, SUMMARY
from asyncrl.training.checkpoint_index import complete

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STEPS, EVERY = 14, 3
SETTINGS = {
    "train__steps": STEPS,
    "train__checkpoint_every": EVERY,
    "staleness__max_lag": 0,
    "staleness__depth": 0,
    "machine__cores": 2,
    "journal__commit_ms": 10,
}


class Lived(NamedTuple):
    """A finished run: every event that was ever durable, how many there were at each kill, and the
    versions it was resumed from."""

    run: Path
    events: list[e.AnyEvent]
    kills: list[int]
    resumed: list[int]
    saving: int = 0
    """The version of the checkpoint that was being written at the last kill."""

    def responses(self) -> dict[tuple[int, int], tuple[bytes, bytes]]:
        """Ids and behaviour log-probabilities of each training rollout, by prompt and place in its
        group."""
        found: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        whose: dict[int, tuple[int, int]] = {}
        for event in self.events:
            match event:
                case e.Admitted(_, first, size, "train", item):
                    whose |= {first + member: (item, member) for member in range(size)}
                case e.Extended(rollout, _, _, _, ids, behaviour) if rollout in whose:
                    held = found.get(whose[rollout], (b"", b""))
                    found[whose[rollout]] = held[0] + ids, held[1] + behaviour
        return found

    def items(self) -> list[int]:
        """The training prompts, in the order in which they were admitted."""
        return [
            event.prompt_index
            for event in self.events
            if isinstance(event, e.Admitted) and event.split == "train"
        ]


def lived(
    model: Path,
    run: Path,
    settings: dict[str, Any],
    *moments: Callable[[Any], bool],
    sealed: bool = False,
) -> Lived:
    """A run to its end. At each of the moments, which look at its follower, everything is killed,
    and the run is resumed; what it was at the last of them is kept beside it, as `at-kill`. Where
    every response is to be `sealed` before, the moments stop the trainer: then, at lag 0, all end
    and none begins."""
    follower, kills, argv = followed(run), [], command(model, run, **settings)
    for moment in moments:
        with started(argv) as process:
            wait_for(
                moment.__name__,
                lambda moment=moment: (follower.look(), moment(follower))[1],
                every_s=0.001,
            )
            if (
                sealed
            ):  # twice, as what was said before the trainer stopped may not be in the journal yet
                wait_for(
                    "end of all responses",
                    lambda: all_sealed(follower) and not time.sleep(0.3) and all_sealed(follower),
                )
            everything(process, run)
        follower.dead()
        kills.append(len(follower.events))
        argv = resume(run)
    if moments:
        shutil.copytree(
            run, run.parent / "at-kill", symlinks=True, ignore=shutil.ignore_patterns("*.sock")
        )
    with started(argv) as process:
        wait_for("end", lambda: (follower.look(), process.poll() is not None)[1])
        out, err = process.communicate()
    assert process.returncode == 0, out + err
    follower.dead()
    return Lived(run, follower.events, kills, follower.resumed)


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """A run that nobody interrupts."""
    return lived(model, tmp_path_factory.mktemp("whole") / "run", SETTINGS)


def beside(whole: Lived, run: Path) -> Path:
    """Place of another run whose engines multiply as those of this one, which measured how."""
    run.mkdir()
    shutil.copyfile(whole.run / PACKED, run / PACKED)
    return run


def stop(pid: int) -> None:
    """Stop a process, and wait until each thread of it has."""

    def states() -> Iterator[str]:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError):  # one that has just ended
                yield (thread / "stat").read_text().rpartition(")")[2].split()[0]

    os.kill(pid, signal.SIGSTOP)
    wait_for("stop of each thread", lambda: {*states()} == {"T"}, every_s=0.001)


@pytest.fixture(scope="module")
def killed(whole: Lived, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """The same run, of which everything is killed three times: before its first event, before it
    has a checkpoint, and while it writes its third one, or the fourth where that was written before
    anybody could look. No response is unfinished then."""
    run = beside(whole, tmp_path_factory.mktemp("killed") / "run")
    missed, trainer = 2 * EVERY, 0

    def unborn(follower: Any) -> bool:
        return (run / RUN_TOML).exists()

    def early(follower: Any) -> bool:
        if follower.version < 1:
            return False
        stop(processes(run)["trainer-0"])
        return True

    def saving(follower: Any) -> bool:
        nonlocal missed, trainer
        trainer = trainer or (follower.version > missed and processes(run)["trainer-0"])
        partial, whole = (
            run / "checkpoints" / f"{mark}step-{missed + EVERY:06d}" for mark in (".partial-", "")
        )
        if trainer and partial.exists():
            stop(trainer)
            if partial.exists():
                return True
            os.kill(trainer, signal.SIGCONT)
        if whole.exists():
            missed += EVERY
            assert missed < STEPS - EVERY, "each was written before anybody could look"
        return False

    return lived(model, run, SETTINGS, unborn, early, saving, sealed=True)._replace(
        saving=missed + EVERY
    )


class Cut(NamedTuple):
    """A run of one step, and the same one killed amid its responses."""

    whole: Lived
    killed: Lived


@pytest.fixture(scope="module")
def cut(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Cut:
    more = {"train__steps": 1, "rollout__max_new_tokens": 192}
    settings = SETTINGS | more | {"train__eval_every": 0, "task__eval_size": 0}
    whole = lived(model, tmp_path_factory.mktemp("uncut") / "run", settings)

    def amid(follower: Any) -> bool:
        return bool(Lived(Path(), follower.events, [], []).responses())

    return Cut(
        whole, lived(model, beside(whole, tmp_path_factory.mktemp("cut") / "run"), settings, amid)
    )


# Everything is followed by `bench/follower.py`, which raises where a token, verdict or prompt is
# lost or a rollout is trained twice.


@pytest.mark.explore
def test_after_sigkill_of_everything_the_run_goes_on_and_finishes(killed: Lived) -> None:
    unborn, early, saving = killed.kills
    assert unborn == 0 < early < saving < len(killed.events)
    *unborn_too, from_early, from_saving = killed.resumed
    assert unborn_too in ([], [0]) and from_early == 0  # it may have had a journal without an event
    assert from_saving == killed.saving - EVERY, "the checkpoint that was being written is not one"
    found = summary.read(killed.run / SUMMARY)
    assert found.ok and found.balances() and found.steps == STEPS
    assert journal.fold(killed.run / JOURNAL).ledger.tokens.trained == found.tokens.trained
    assert processes(killed.run) == {}
    assert found.accuracy == summary.Accuracy.of(Curve(read(killed.run / METRICS)))


@pytest.mark.explore
def test_at_lag_0_the_curve_of_a_killed_run_is_that_of_an_uninterrupted_one(
    whole: Lived, killed: Lived
) -> None:
    """A line for each step, with the figures of its step."""
    mine, theirs = (
        [point for point in read(run.run / METRICS) if isinstance(point, StepPoint)]
        for run in (whole, killed)
    )
    assert [point.version for point in mine] == list(range(1, STEPS + 1))
    for one, other in zip(mine, theirs, strict=True):
        assert (one.version, one.trained, one.discarded, one.lag_max) == (
            other.version,
            other.trained,
            other.discarded,
            other.lag_max,
        )
        assert (one.reward, one.metrics) == (other.reward, other.metrics)
    seconds = [point.seconds for point in theirs]
    assert seconds == sorted(seconds) and {"loss", "grad_norm", "lr"} <= mine[0].metrics.keys()


@pytest.mark.explore
def test_unfinished_rollouts_go_on_from_their_last_journalled_token(
    killed: Lived, cut: Cut
) -> None:
    for run in (killed, cut.killed):
        held: dict[int, int] = {}
        training, resumed, continued = set(), set(), set()
        for event in run.events:
            match event:
                case e.Admitted(_, first, size, "train"):
                    training |= set(range(first, first + size))
                case e.Requeued(rollout, _, "resumed") if (
                    held.get(rollout) and rollout in training
                ):  # an evaluation begins again
                    resumed.add(rollout)
                case e.Extended(rollout, attempt, _, start, ids):
                    assert start == held.get(rollout, 0)
                    if attempt > 1 and start:
                        continued.add(rollout)
                    held[rollout] = start + len(ids) // 4
        assert resumed <= continued
    assert resumed


@pytest.mark.explore
def test_responses_that_were_killed_amid_are_the_same_to_what_float32_rounds(cut: Cut) -> None:
    """Prefill what was written, which adds up in another order than decoding did.

    A sampler sums probabilities in the order of ids. So a draw may lie within that rounding of the
    boundary between two ids beside each other, about once in a thousand runs: then one response
    goes on from the other id, and there is nothing to compare.
    """
    mine, theirs = cut.whole.responses(), cut.killed.responses()
    assert mine.keys() == theirs.keys()
    steps = [
        first_difference(ids, theirs[key][0])
        for key, (ids, _) in mine.items()
        if ids != theirs[key][0]
    ]
    if [abs(step) for step in steps] == [1]:
        pytest.skip("a draw lay on the boundary between two ids, to what float32 rounds")
    assert not steps
    for key, (_, behaviour) in mine.items():
        np.testing.assert_allclose(
            np.frombuffer(behaviour, np.float32),
            np.frombuffer(theirs[key][1], np.float32),
            rtol=0,
            atol=1e-5,
        )
    assert_equal(cut.whole, cut.killed.run, within=1e-5)


def first_difference(mine: bytes, theirs: bytes) -> int:
    """The second id less the first, where two responses differ first; 0 where one goes on longer.

    >>> first_difference(np.int32([7, 148, 3]).tobytes(), np.int32([7, 149, 5]).tobytes())
    1
    """
    pairs = zip(np.frombuffer(mine, np.int32), np.frombuffer(theirs, np.int32), strict=False)
    return next((int(there) - int(here) for here, there in pairs if here != there), 0)


@pytest.mark.explore
def test_no_prompt_is_skipped_and_none_comes_twice(whole: Lived, killed: Lived) -> None:
    assert killed.items() == whole.items() and len(set(killed.items())) == 2 * STEPS


@pytest.mark.explore
def test_at_lag_0_a_killed_and_resumed_run_equals_an_uninterrupted_one_weight_for_weight(
    whole: Lived, killed: Lived
) -> None:
    assert_equal(whole, killed.run)
    mine, theirs = whole.responses(), killed.responses()
    assert {key: ids for key, (ids, _) in mine.items()} == {
        key: ids for key, (ids, _) in theirs.items()
    }
    assert mine == theirs


def assert_equal(whole: Lived, run: Path, within: float = 0.0) -> None:
    """Every weight of the last version is the same, to the last bit unless it may differ."""
    from safetensors.torch import load_file

    one, other = (load_file(path / MODEL / "model.safetensors") for path in (whole.run, run))
    differ = {name: float((one[name] - other[name]).abs().max()) for name in one}
    assert max(differ.values()) <= within and one.keys() == other.keys()


@pytest.mark.explore
def test_a_damaged_checkpoint_is_put_aside_and_the_one_before_it_is_used(
    whole: Lived, killed: Lived
) -> None:
    run = moved(killed, "damaged")
    assert [checkpoint.version for checkpoint in complete(run)] == list(
        range(EVERY, killed.saving, EVERY)
    )
    weights = complete(run)[-1].path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    done = train(resume(run))
    assert done.returncode == 0, done.stdout + done.stderr
    log = (run / "logs" / "coordinator-0.log").read_text()
    assert (
        f"step-{killed.saving - EVERY:06d} is damaged: model.safetensors differs from what was "
        "written; it is put aside" in log
    )
    assert summary.read(run / SUMMARY).steps == STEPS
    assert_equal(whole, run)


def moved(killed: Lived, name: str) -> Path:
    """A copy of the run as it was when it was killed for the last time, under a path of its own."""
    run = killed.run.parent / name
    shutil.copytree(killed.run.parent / "at-kill", run, symlinks=True)
    toml = run / RUN_TOML
    toml.write_text(toml.read_text().replace(f'"{killed.run}"', f'"{run}"'))
    return run


@pytest.mark.explore
def test_resuming_a_finished_run_changes_nothing(whole: Lived) -> None:
    before = (
        (whole.run / MODEL / "model.safetensors").read_bytes(),
        journal.fold(whole.run / JOURNAL).ledger.rollouts.trained,
    )
    done = train(resume(whole.run))
    assert done.returncode == 0, done.stdout + done.stderr
    assert before == (
        (whole.run / MODEL / "model.safetensors").read_bytes(),
        journal.fold(whole.run / JOURNAL).ledger.rollouts.trained,
    )
    assert summary.read(whole.run / SUMMARY).ok


@pytest.mark.explore
def test_a_damaged_or_missing_journal_is_refused_before_anything_starts(killed: Lived) -> None:
    run = moved(killed, "refused")
    path = run / JOURNAL
    for wal in run.glob(f"{JOURNAL}-*"):
        wal.unlink()
    path.write_bytes(b"SQLite format 3\0" + b"\xa5" * 8192)
    refused(run, "it is damaged, or not a journal")
    path.unlink()
    refused(run, f"no {JOURNAL}")


def refused(run: Path, said: str) -> None:
    def files() -> list[Path]:
        return sorted(
            path for path in run.rglob("*") if not path.name.startswith(f"{JOURNAL}-")
        )  # SQLite's own, of whoever reads

    before = files()
    done = train(resume(run))
    assert (
        done.returncode == 2 and said in done.stderr and len(done.stderr.strip().splitlines()) == 1
    ), done.stderr
    assert files() == before and processes(run) == {}


@pytest.mark.explore
def test_a_journal_with_a_byte_changed_or_a_row_gone_is_refused(killed: Lived) -> None:
    import sqlite3

    run = moved(killed, "changed")
    connection = sqlite3.connect(run / JOURNAL)
    with connection:
        first, data = connection.execute(
            "SELECT first, data FROM events ORDER BY first LIMIT 1"
        ).fetchone()
        connection.execute(
            "UPDATE events SET data = ? WHERE first = ?",
            (b"\xdd\x00\x00\x00\xff" + data[5:], first),
        )
    refused(run, "holds something that is not an event of this asyncrl")
    with connection:
        connection.execute("UPDATE events SET data = ? WHERE first = ?", (data, first))
        connection.execute(
            "DELETE FROM events WHERE first = (SELECT first FROM events ORDER BY first LIMIT 1 "
            "OFFSET 3)"
        )
    connection.close()
    refused(run, "has no events from")


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A file system of its own; skips where this machine lets nobody mount one."""
    path.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128m", "none", str(path)], capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(ballast: Path) -> None:
    """Write a file until its disk has no room."""
    with ballast.open("wb", buffering=0) as file:
        filled = 0
        while filled < 4:  # what others give back meanwhile is taken too
            try:
                file.write(bytes(2**16 if filled == 0 else 2**12))
            except OSError:
                filled += 1
                time.sleep(0.2)


@pytest.mark.explore
def test_a_full_disk_is_waited_for_and_said(model: Path, tmp_path: Path) -> None:
    """Once it has room again in time, and the run goes on. Then it has none for `stall_s`: the run
    ends by that name, without another life, and leaves nothing half written; it can be resumed."""
    with small_disk(tmp_path / "disk") as disk:
        run, ballast = disk / "run", disk / "ballast"
        follower = followed(run)
        settings = SETTINGS | {
            "train__steps": 100_000,
            "train__checkpoint_every": 100,
            "supervision__grace_s": 60.0,
            "supervision__stall_s": 20.0,
        }
        with started(command(model, run, **settings)) as process:
            wait_for("step", lambda: step_in_status(run) > 0)
            fill(ballast)
            wait_for("word", lambda: "disk" in (why(run)), every_s=1.0)
            counts = [follower.look()]
            time.sleep(1.0)
            counts.append(follower.look())
            assert process.poll() is None, process.communicate()
            assert counts[0] == counts[1], "it waits"
            ballast.unlink()
            wait_for("event", lambda: follower.look() > counts[1])
            before = (run / STATUS).read_bytes()
            fill(ballast)
            code, out, err = end(process)
        assert code == 1, out + err
        follower.dead()
        [said] = [line for line in err.splitlines() if "the run failed" in line]
        assert "make room, and resume the run" in said and str(run) in said
        assert "Traceback" not in err and "Logging error" not in err, err
        assert "the run continues" not in out, out
        assert "waits for the disk" in out, out  # the alarm
        left = {path.name for path in run.iterdir()}
        assert not any(name.endswith((".partial", ".sock")) for name in left), left
        assert step_in_status(run) >= msgspec.json.decode(before)["step"] > 0
        assert "no status" not in why(run) and "after 0 of" not in why(run)
        ballast.unlink()
        again = [f"--set=train.steps={steps_done(run) + 2}", "--resume", str(run)]
        with started([*command(model, run)[:4], *again]) as process:
            code, out, err = end(process)
        assert code == 0, out + err
        assert summary.read(run / SUMMARY).balances()
        assert all(
            now.version == before.version + 1
            for before, now in pairwise(x for x in follower.events if isinstance(x, e.Published))
        )


def step_in_status(run: Path) -> int:
    """Return the step that status.json tells; 0 while there is none."""
    return run_status.read(run / STATUS).step if (run / STATUS).exists() else 0


def why(run: Path) -> str:
    """Words of `asyncrl why`."""
    argv = [sys.executable, "-m", "asyncrl.cli", "why", str(run)]
    return str(warm_process.run(argv, capture_output=True, text=True).stdout)


@pytest.mark.explore
def test_a_kill_of_each_role_loses_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Does as `bench/kill_matrix.py` at its end, by forks of the warm process."""
    monkeypatch.setattr(kill_matrix, "subprocess", warm_process)
    words = ["--kills", "5", "--seed", "1", "--model", str(model), "--run", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["kill_matrix.py", *words])
    failed = kill_matrix.main()
    out, err = capsys.readouterr()
    assert not failed, out + err
    for line in ("lost   0", "twice  0", "hang   0"):
        assert line in out.splitlines()
    assert all(
        f"{role} " in out for role in ("rollout", "reward", "trainer", "coordinator", "everything")
    )
