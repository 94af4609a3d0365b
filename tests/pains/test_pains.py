"""Pains of such systems' users (docs/pains.md): each test is named after its row, and
fails without the answer.

Whole runs in virtual time. Rows that need real processes or a real model have their test where
those are: see the page.
"""

from __future__ import annotations

import cProfile
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from types import CodeType

import pytest
import trio
from numpy import float32, full, int32
from pains_world import simulated
from scripted_parts import ScriptedLearner, ScriptedWeights
from scripted_world import ScriptedWorld, configured
from some_values import some
from without_rules import without_rules

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.peers import OUTBOX
from asyncrl.config import VARIABLES, ConfigError, load
from asyncrl.config.derived import derived
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script, ScriptedEngine
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.explain.diagnosis import diagnose
from asyncrl.journal import Journal
from asyncrl.journal.disk import DiskFull, Write
from asyncrl.messages import NoVerdict, Prepare, Publish, Replace, Scored
from asyncrl.simulation.faults import Fault
from asyncrl.simulation.sim_process import SimProcess
from asyncrl.sizing.scale import scale


def alike(tokens: int, seconds_per_token: float) -> Callable[[Request], Script]:
    """Every response alike."""
    return lambda request: answer(request, tokens, seconds_per_token)


def answer(request: Request, tokens: int, seconds_per_token: float, ends: str = "stop") -> Script:
    left = max(0, tokens - request.prefix_tokens)
    return Script(full(left, 5, int32), full(left, -1.0, float32), seconds_per_token, ends)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------- 1: waiting for ever


async def test_pain_01_a_producer_dies_and_one_rollout_never_returns(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Rollout 5 hangs with whoever has it, and an engine is killed in the middle: every step is
    trained, and one rollout is missing."""
    world = ScriptedWorld(
        configured(
            rollout={"actors": 2, "attempts": 2, "lease_s": 20.0},
            supervision={"stall_s": 100.0},
            train={"steps": 40},
        )
    )
    world.script = lambda request: answer(
        request, 8, 0.5, "hang" if request.rollout == 5 else "stop"
    )

    async def murderer() -> None:
        await world.until(lambda: world.learner.version >= 1 and world.holds("rollout-0"))
        world.kill("rollout-0")

    outcome = await world.run(murderer)
    world.check()
    assert outcome.ok and world.learner.version == 40
    assert [event.rollout for event in world.log.events if isinstance(event, e.Buried)] == [5]


# ----------------------------------------------------------------------- 2: publications that hang


@pytest.mark.parametrize("phase", ["prepare", "commit"])
async def test_pain_02_an_engine_that_hangs_in_a_publication_is_fenced(
    phase: str, autojump_clock: trio.testing.MockClock
) -> None:
    """It receives for ever, or does not answer to the commit: the others have the version within
    the deadlines."""
    deadline_s = 5.0
    world = ScriptedWorld(
        configured(
            rollout={"actors": 3}, publication={"deadline_s": deadline_s}, train={"steps": 8}
        )
    )
    hung: list[int] = []

    async def receive(index: int, message: Prepare, honest=world.receive) -> ScriptedWeights:  # type: ignore[no-untyped-def]
        if phase == "prepare" and index == 1 and message.version == 2 and not hung:
            hung.append(message.publication)
            await trio.sleep_forever()
        return await honest(index, message)

    async def deaf() -> None:
        await world.until(
            lambda: world.learner.version >= 2 and world.coordinator.parts.publishing.busy
        )
        peer = world.coordinator.parts.roster.get("rollout-1")
        assert phase == "prepare" or peer is not None
        if phase == "commit" and peer is not None:
            send = peer.send
            peer.send = lambda message, *buffers: (
                None if type(message).__name__ == "Commit" else send(message, *buffers)
            )  # type: ignore[method-assign]
            hung.append(0)

    world.receive = receive  # type: ignore[method-assign]
    outcome = await world.run(deaf)
    world.check()
    assert outcome.ok and world.learner.version == 8 and hung
    assert [message.index for message in world.heard if isinstance(message, Replace)] == [1]
    assert max(world.coordinator.parts.publishing.seconds) < 4 * deadline_s and world.seconds < 60.0


async def test_pain_02_a_trainer_that_hangs_in_a_publication_ends_the_run_by_name(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = ScriptedWorld(
        configured(
            publication={"deadline_s": 5.0},
            supervision={"stall_s": 1000.0},
            rollout={"lease_s": 500.0},
        )
    )

    async def send(message: Publish, honest=world.learner.send) -> ScriptedWeights:  # type: ignore[no-untyped-def]
        if world.learner.version == 2:
            await trio.sleep_forever()
        return await honest(message)

    world.learner.send = send  # type: ignore[method-assign]
    outcome = await world.run()
    assert not outcome.ok and world.seconds < 60.0
    assert (
        "publications failed in a row, the last because of the trainer: no answer within 5 s of "
        "transfer" in outcome.reason
    )


# ----------------------------------------------------------------------------- 3: the end of a run


@pytest.mark.explore
@pytest.mark.parametrize("depth", some([0, 2]))
@pytest.mark.parametrize("batch_groups", [1, 3])
async def test_pain_03_short_runs_of_every_shape_exit(
    depth: int, batch_groups: int, autojump_clock: trio.testing.MockClock
) -> None:
    """The last step, the last evaluation, the last checkpoint and the last prompt, in every order
    that they may come in."""
    for steps, eval_every, checkpoint_every, prompts in itertools.product(
        (1, 2, 3), (0, 1, 2), (0, 1), (2, 6, 1000)
    ):
        world = ScriptedWorld(
            configured(
                task={"eval_size": 2, "train_size": prompts, "epochs": 1},
                rollout={"group_size": 2, "max_new_tokens": 8},
                train={
                    "steps": steps,
                    "batch_groups": batch_groups,
                    "eval_every": eval_every,
                    "checkpoint_every": checkpoint_every,
                },
                staleness={"depth": depth, "max_lag": depth},
            )
        )
        with trio.fail_after(1000):
            outcome = await world.run()
        world.check()
        reached = min(steps, -(-prompts // batch_groups))
        assert outcome.ok and world.learner.version == reached, outcome.reason
        assert {
            0,
            reached,
        } <= world.coordinator.parts.evaluation.accuracy.keys() and world.learner.saved[-1][
            0
        ] == reached


# ------------------------------------------------------------------------------- 4: start-up races


@pytest.mark.parametrize("late_s", some([0.0, 0.06, 0.5, 3.0]))
async def test_pain_04_no_rollout_before_the_first_weights(
    late_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    """Engines come together, in the first publication, and after it: none is given anything before
    it serves what is published."""
    world = ScriptedWorld(configured(rollout={"actors": 3}, train={"steps": 30}))
    world.late_s = late_s
    began: list[tuple[int | None, int | None]] = []

    def engine(process: SimProcess, make=world.make_engine) -> ScriptedEngine:  # type: ignore[no-untyped-def]
        made: ScriptedEngine = make(process)
        submit = made.submit

        def watched(requests: Sequence[Request]) -> None:
            began.append((made.version, world.coordinator.parts.publishing.committed))
            submit(requests)

        made.submit = watched  # type: ignore[method-assign]
        return made

    world.make_engine = engine  # type: ignore[method-assign]
    outcome = await world.run()
    world.check()
    assert outcome.ok and world.log.events[0] == e.Published(0)
    assert began and all(None not in versions for versions in began)
    assert {event.holder for event in world.log.events if isinstance(event, e.Leased)} == {
        "rollout-0",
        "rollout-1",
        "rollout-2",
    }
    assert world.coordinator.parts.publishing.failed == []


# ----------------------------------------------------------------------------- 5: engines that die


async def test_pain_05_engines_that_die_again_and_again_cost_neither_the_run_nor_a_token(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Whichever engine is in the middle of something is killed, every two seconds; three times all
    of them at once."""
    world = ScriptedWorld(
        configured(
            rollout={"actors": 3, "attempts": 50, "lease_s": 50.0},
            train={"steps": 24},
            supervision={"stall_s": 100.0},
        )
    )
    world.script = alike(20, 0.1)
    killed: list[str] = []

    async def murderer() -> None:
        for turn in itertools.count():
            await trio.sleep(2.0)
            await world.until(lambda: any(world.holds(f"rollout-{index}") for index in range(3)))
            for index in range(3):
                if world.holds(f"rollout-{index}") and (turn in (2, 5, 8) or index == turn % 3):
                    world.kill(f"rollout-{index}")
                    killed.append(f"rollout-{index}")

    outcome = await world.run(murderer)
    world.check()
    assert outcome.ok and world.learner.version == 24 and len(killed) > 10, outcome.reason
    assert world.of(e.Buried) == [] and world.store.experience.ledger.tokens.discarded.keys() <= {
        "evaluation",
        "stale",
    }
    lost = {
        event.rollout
        for event in world.log.events
        if isinstance(event, e.Requeued) and event.reason == "actor_lost"
    }
    tokens = Counter[int]()
    for event in world.log.events:
        if isinstance(event, e.Extended):
            tokens[event.rollout] += len(event.ids) // 4
    trained = {event.rollout for event in world.log.events if isinstance(event, e.Trained)}
    assert len(lost & trained) > 10 and {tokens[rollout] for rollout in lost & trained} == {20}, (
        "what was streamed is not sampled again"
    )


# ------------------------------------------------------------------ 7: crashes, and what they lose


@pytest.mark.parametrize("at", some([0.5, 0.9, 1.3, 1.7, 2.1, 2.9]))
def test_pain_07_a_crash_loses_nothing_and_neither_skips_nor_repeats_a_prompt(at: float) -> None:
    """Everything is killed, twice. The checker of the simulation compares the resumed state with
    its own account of what was on disk, each prompt admitted with the next of the data set, and
    each rollout trained with all that earlier versions were made of."""
    report = simulated(7, Fault(at, "kill_everything", 1), Fault(at + 2.0, "kill_everything", 2))
    assert report.ok, report.violation
    assert len(report.lives) == 1 + report.faults["kill_everything"] > 1 and report.lives[-1].ok
    assert len(report.versions) == 7
    assert all(
        report.checks[name] for name in ("restart", "prompts", "once", "whole", "tokens are booked")
    )


# ---------------------------------------------------------------- 8: updates that abort their work


async def test_pain_08_an_update_aborts_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """Responses that live through several updates: each is leased once, requeued never, and trained
    with the tokens of each version."""
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            rollout={"actors": 2, "max_new_tokens": 40},
            staleness={"max_lag": 8, "depth": 4},
            train={"steps": 12, "batch_groups": 1},
        )
    )
    world.script = lambda request: answer(request, 40 if request.rollout % 4 else 36, 0.1)
    outcome = await world.run()
    world.check()
    assert outcome.ok
    assert world.of(e.Requeued) == [] and world.of(e.LateTokens) == []
    leases = Counter(event.rollout for event in world.log.events if isinstance(event, e.Leased))
    assert set(leases.values()) == {1}
    versions = defaultdict[int, set[int]](set)
    for event in world.log.events:
        if isinstance(event, e.Extended):
            versions[event.rollout].add(event.version)
    trained = [event for event in world.log.events if isinstance(event, e.Trained)]
    assert sum(len(versions[event.rollout]) > 2 for event in trained) > 10
    assert not world.store.experience.ledger.tokens.discarded


# --------------------------------------------------------------------- 9: limits that do not limit


@pytest.mark.parametrize(("max_lag", "depth"), [(0, 0), (1, 1), (2, 1), (1, 3)])
@pytest.mark.parametrize(
    "kind", some(["kill_everything", "restart_everything", "kill_coordinator"])
)
def test_pain_09_the_staleness_bound_bounds_across_resume(
    kind: str, max_lag: int, depth: int
) -> None:
    """The checker counts the lag of each token that the learner is given from the versions that
    sampled it, in every life of the run; also where depth is over the bound, which a run is
    refused."""
    staleness: dict[str, object] = {"max_lag": max_lag, "depth": depth}
    with without_rules():
        report = simulated(9, Fault(1.1, kind, 1), Fault(2.7, kind, 2), staleness=staleness)
    assert report.ok, report.violation
    assert len(report.lives) > 1 and report.checks["lag"] > 6 * 2 * 3 * 0.9


# -------------------------------------------------------------------- 10: hard prompts that starve


@pytest.mark.parametrize("on_stale", some(["mask", "restart", "drop"]))
async def test_pain_10_hard_prompts_neither_starve_nor_hold_up_the_run(
    on_stale: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Every third prompt takes ten times as long as the others, longer than the bound allows beside
    them. As is the default, it is trained like the others, and loses only its oldest tokens; a
    prompt that starts again goes first, so that it is not overtaken for ever; only where its groups
    are dropped it is trained less often, and the ledger says so."""
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            staleness={"max_lag": 1, "depth": 1, "on_stale": on_stale},
            rollout={"max_new_tokens": 50, "group_size": 2, "lease_s": 500.0},
            train={"steps": 40, "batch_groups": 1},
            supervision={"stall_s": 1000.0},
        )
    )

    items: dict[int, int] = {}

    def append(event: e.AnyEvent, honest=world.log.append) -> int:  # type: ignore[no-untyped-def]
        if isinstance(event, e.Admitted):
            items.update(
                dict.fromkeys(range(event.first, event.first + event.size), event.prompt_index)
            )
        return honest(event)

    def hard(rollout: int) -> bool:
        return items[rollout] % 3 == 0

    world.log.append = append  # type: ignore[method-assign]
    world.script = lambda request: answer(request, 50 if hard(request.rollout) else 5, 0.05)
    with trio.fail_after(1000):
        outcome = await world.run()
    world.check()
    assert outcome.ok and world.learner.version == 40
    trained = Counter(
        hard(event.rollout)
        for event in world.log.events
        if isinstance(event, e.Trained) and event.trained
    )
    ledger = world.store.experience.ledger
    if on_stale == "drop":
        assert (
            ledger.rollouts.discarded == {"stale": ledger.rollouts.total - 80} and trained[True] > 0
        )
    else:
        assert trained[True] >= sum(trained.values()) / 4
    if on_stale == "mask":
        assert not ledger.rollouts.discarded


# ------------------------------------------------------------------- 11: one sample, and its group


async def test_pain_11_one_slow_and_one_failed_sample_do_not_take_their_group_with_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Of every group of eight one sample gets no verdict, and of the first group another one hangs
    for good. The six or seven others are trained, with a baseline of their own rewards; while the
    first group waits, younger ones are trained."""
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            rollout={
                "actors": 2,
                "group_size": 8,
                "k_min": 4,
                "attempts": 2,
                "filter_patience": 8,
                "lease_s": 10.0,
            },
            train={"steps": 40, "batch_groups": 1},
            staleness={"on_stale": "train"},
        )
    )
    world.script = lambda request: answer(
        request, 4 + request.rollout % 8, 0.05, "hang" if request.rollout == 5 else "stop"
    )
    world.verifiers._verdict = lambda split, prompt_index, ids: (
        NoVerdict("raised") if len(ids) // 4 == 6 else Scored(len(ids) / 4)
    )
    with trio.fail_after(200):
        outcome = await world.run()
    world.check()
    assert outcome.ok
    order = list(
        dict.fromkeys(
            sample.group for batch, _ in world.learner.batches for sample in batch.samples
        )
    )
    assert order.index(0) > 5
    rewards = {
        group: values
        for batch, _ in world.learner.batches
        for group, values in batch.rewards.items()
    }
    assert len(rewards[0]) == 6 and {len(values) for group, values in rewards.items() if group} == {
        7
    }
    assert all(6.0 not in values and 0.0 not in values for values in rewards.values())
    lost = world.store.experience.ledger.rollouts.discarded
    assert lost == {"no_verdict": 40, "lease_expired": 1}


# -------------------------------------------------------------------------------------- 13: memory


async def test_pain_13_a_slow_trainer_fills_no_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Training takes a hundred times as long as generation: what is live, and what waits for each
    peer, stays where it was."""
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0}, staleness={"depth": 2, "max_lag": 2}, rollout={"actors": 2}
        )
    )
    world.learner = ScriptedLearner(seconds_per_token=0.2)
    most = (2 + 1) * world.config.train.batch_groups
    groups, tokens, frames = [0], [0], [0]

    async def look() -> None:
        while True:
            await trio.sleep(0.05)
            groups.append(len(world.store.experience.groups))
            tokens.append(world.store.experience.ledger.tokens.live)
            frames.extend(
                peer._outbox.statistics().current_buffer_used
                for peer in world.coordinator.parts.roster
            )

    outcome = await world.run(look)
    world.check()
    assert outcome.ok and world.seconds > 50
    assert (
        max(groups) == most
        and 0
        < max(tokens)
        <= most * world.config.rollout.group_size * world.config.rollout.max_new_tokens
    )
    assert max(frames) < 8 < OUTBOX


class Filling:
    """A disk that has no room for a while."""

    last = size = 0

    def __init__(self) -> None:
        self.full = True
        self.written = 0

    async def commit(self, writes: list[Write]) -> None:
        await trio.sleep(0.01)
        if self.full:
            raise DiskFull("there is no room on the disk")
        self.written += len(writes)

    async def aclose(self) -> None:
        pass


async def test_pain_13_a_slow_disk_fills_no_memory(autojump_clock: trio.testing.MockClock) -> None:
    """The journal takes in its limit and one message more from each who sends; then everybody
    waits, until there is room."""
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            rollout={"actors": 2, "lease_s": 400.0},
            train={"steps": 30},
            supervision={"stall_s": 500.0},
        )
    )
    disk, pending, steps = Filling(), [0], [0]
    limit = 20_000  # more than what is recorded before the first message
    async with Journal.over(disk, limit_bytes=limit) as journal:
        world.store = EventStore(Experience(), journal)

        async def look() -> None:
            while True:
                await trio.sleep(0.05)
                pending.append(journal.pending_bytes)
                if trio.current_time() > 120.0 and disk.full:
                    steps.append(world.learner.version)
                    disk.full = False

        outcome = await world.run(look)
    assert outcome.ok and world.learner.version == 30 > steps[-1]
    assert limit <= max(pending) < 1.1 * limit, max(pending)
    assert world.store.experience.ledger.balances()


# -------------------------------------------------------- 14: asynchronous at lag 0 is synchronous


@pytest.mark.parametrize("seed", some(range(3)))
def test_pain_14_at_lag_0_a_run_is_synchronous_training(seed: int) -> None:
    """Of a policy that is exact: each version's weights are those of a loop that generates
    everything, and then trains everything."""
    everything = {"keep": "all", "keep_members": 0}
    report = simulated(seed, staleness={"max_lag": 0, "depth": 0}, train=everything)
    assert report.ok and report.checks["synchronous"] == 1 and len(report.versions) == 7


# -------------------------------------------------------------------------------------- 20: pauses


async def test_pain_20_engines_decode_while_weights_travel(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A transfer takes three seconds, and decoding goes on through all of it."""
    world = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            staleness={"depth": 4, "max_lag": 8},
            train={"steps": 10, "batch_groups": 1},
        )
    )
    world.script = alike(24, 0.1)
    streamed: list[bool] = []

    async def receive(index: int, message: Prepare) -> ScriptedWeights:
        await trio.sleep(3.0)
        return ScriptedWeights(message.version)

    def append(event: e.AnyEvent, honest=world.log.append) -> int:  # type: ignore[no-untyped-def]
        if isinstance(event, e.Extended):
            streamed.append(world.coordinator.parts.publishing.busy)
        return honest(event)

    world.receive, world.log.append = receive, append  # type: ignore[method-assign]
    outcome = await world.run()
    world.check()
    assert outcome.ok and min(world.coordinator.parts.publishing.seconds) >= 3.0
    assert sum(streamed) > len(streamed) / 2
    assert (
        max(
            pause
            for pauses in world.coordinator.parts.publishing.pauses[1:]
            for pause in pauses.values()
        )
        < 0.1
    )


# --------------------------------------------------------------------------- 21: the control plane


@pytest.mark.explore
def test_pain_21_what_a_message_costs_does_not_grow_with_the_number_of_engines() -> None:
    """Calls of functions of the coordinator and of experience for each event, counted, with 8
    engines and with six times as many. It falls, because what is done once a second is shared by
    more; a look at every engine at each message would keep it up."""

    def calls(engines: int) -> float:
        profile = cProfile.Profile()
        came = profile.runcall(scale, engines, 30.0, seconds_per_token=0.1)
        assert came.violation is None and came.events > 10 * engines
        files = {
            entry.code: entry.callcount
            for entry in profile.getstats()
            if isinstance(entry.code, CodeType)
        }
        mine = sum(
            n
            for code, n in files.items()
            if "/actors/coordinator/" in code.co_filename or "/experience/" in code.co_filename
        )
        return mine / came.events

    assert calls(48) < 0.8 * calls(8)


# ------------------------------------------------------------------------------- 22: the slow side


async def asked(world: ScriptedWorld) -> str:
    """Words of `asyncrl why` about the run, a minute after its start."""
    said: list[str] = []

    async def ask() -> None:
        await trio.sleep_until(60.0)
        said.append(diagnose(world.coordinator.status()))
        world.coordinator.parts.end(True, "asked")

    await world.run(ask)
    return said[0]


async def test_pain_22_why_names_the_slow_side(autojump_clock: trio.testing.MockClock) -> None:
    world = ScriptedWorld(configured(task={"eval_size": 0}, train={"steps": 10_000}))
    world.script = alike(24, 0.5)
    assert "generation is the slow side" in await asked(world)


async def test_pain_22_why_names_a_slow_trainer(autojump_clock: trio.testing.MockClock) -> None:
    world = ScriptedWorld(configured(task={"eval_size": 0}, train={"steps": 10_000}))
    world.learner = ScriptedLearner(step_s=8.0)
    assert "the trainer is the slow side" in await asked(world)


async def test_pain_22_why_names_slow_verifiers(autojump_clock: trio.testing.MockClock) -> None:
    world = ScriptedWorld(configured(task={"eval_size": 0}, train={"steps": 10_000}))
    world.verifiers._seconds = 8.0
    assert "verifiers are the slow side" in await asked(world)


# ------------------------------------------------------------------------------------ 24: settings


def test_pain_24_few_variables_and_nothing_unknown_or_contradictory_is_taken() -> None:
    assert len(VARIABLES) <= 12
    for sets, environment, said in (
        (["rollout.group_sise=4"], {}, "rollout.group_size"),
        ([], {"ASYNCRL_MAXLAG": "4"}, "ASYNCRL_MAX_LAG"),
        (["staleness.max_lag=0", "staleness.depth=3"], {}, "staleness.max_lag"),
    ):
        with pytest.raises(ConfigError) as refused:
            load(None, sets, environment)
        assert said in str(refused.value) and "\n" not in str(refused.value)
    assert {"groups live", "slots", "queue", "lag, worst"} <= {
        row.name for row in derived(load(None, [], {}), 4)
    }
