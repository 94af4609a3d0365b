"""The settings of flow, each against a run in virtual time: the groups that start, the groups that
are taken, and the rests of generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
import trio
from scripted_world import ScriptedWorld, heavy_tailed, run_well

from asyncrl.config import VARIABLES, load
from asyncrl.experience import events as e
from asyncrl.experience.call import RolloutStatus
from asyncrl.messages import NoVerdict, Scored, Split, Verdict
from asyncrl.staleness.admission import AdmissionSettings, LiveGroups

B = 3
GROUP = 4


def world(**settings: dict[str, object]) -> ScriptedWorld:
    return heavy_tailed(B, GROUP, **settings)


def live_over_time(made: ScriptedWorld) -> list[int]:
    """Groups live after each event, recounted."""
    group_of: dict[int, int] = {}
    step_of: dict[int, int] = {}
    live: set[int] = set()
    counts = []
    for event in made.log.events:
        match event:
            case e.Admitted():
                group_of.update(
                    dict.fromkeys(range(event.first, event.first + event.size), event.group)
                )
                live.add(event.group)
            case e.Taken():
                step_of.update({group_of[rollout]: event.step for rollout in event.rollouts})
            case e.Dropped():
                live.discard(event.group)
            case e.Published():
                live -= {group for group, step in step_of.items() if step < event.version}
            case _:
                pass
        counts.append(len(live))
    return counts


@pytest.mark.parametrize(("overprovision", "most"), [(1.0, 6), (1.5, 8), (2.0, 9)])
async def test_overprovision_starts_so_many_groups_for_each_that_a_step_needs(
    overprovision: float, most: int, autojump_clock: trio.testing.MockClock
) -> None:
    made = await run_well(world(rollout={"overprovision": overprovision}))
    assert max(live_over_time(made)) == most
    assert most == LiveGroups(AdmissionSettings(1, B, overprovision)).max_live


async def test_batch_mode_interrupts_what_a_full_step_does_not_need_and_leases_it_again_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """APRIL: while a full step is trained and published nobody decodes; then what was interrupted
    goes on, the oldest first, and nothing that was generated is lost."""
    made = await run_well(
        world(rollout={"mode": "batch", "overprovision": 2.0}, staleness={"depth": 0})
    )
    taken, rests, groups = Counter[int](), False, dict[int, int]()
    interrupted: list[int] = []
    again: list[int] = []
    for event in made.log.events:
        match event:
            case e.Admitted():
                groups.update(
                    dict.fromkeys(range(event.first, event.first + event.size), event.group)
                )
            case e.Taken():
                taken[event.step] += len({groups[rollout] for rollout in event.rollouts})
                rests = taken[event.step] == B
            case e.Published():
                rests = False
            case e.Requeued():
                assert event.reason == "interrupted" and not event.failed
                interrupted.append(event.rollout)
            case e.Leased():
                assert not rests, f"rollout {event.rollout} was leased while the run rests"
                if event.attempt > 1:
                    again.append(event.rollout)
                    assert event.rollout == min(interrupted), "the oldest goes on first"
                    interrupted.remove(event.rollout)
            case _:
                pass
    assert again and not made.store.experience.ledger.tokens.discarded
    spans = Counter(event.rollout for event in made.log.events if isinstance(event, e.Extended))
    assert max(spans.values()) > 1


async def test_in_flight_nobody_is_interrupted(autojump_clock: trio.testing.MockClock) -> None:
    made = await run_well(world(rollout={"overprovision": 2.0}))
    requeued = [event for event in made.log.events if isinstance(event, e.Requeued)]
    assert all(
        made.store.experience.rollouts[event.rollout].status is RolloutStatus.WAITING
        for event in requeued
    ), "only when the run ends"


@pytest.mark.parametrize("window", [1, 2, 4, 7])
async def test_nothing_is_taken_beyond_the_window_and_lag_is_bounded_by_it(
    window: int, autojump_clock: trio.testing.MockClock
) -> None:
    made = await run_well(world(staleness={"window": window, "max_lag": 20}, train={"steps": 12}))
    groups: dict[int, int] = {}
    open_groups: dict[int, set[int]] = {}
    for event in made.log.events:
        if isinstance(event, e.Admitted):
            groups.update(dict.fromkeys(range(event.first, event.first + event.size), event.group))
            open_groups[event.group] = set(range(event.first, event.first + event.size))
        elif isinstance(event, e.Taken):
            for rollout in event.rollouts:
                assert groups[rollout] < min(open_groups) + window, (
                    "no group of an evaluation is numbered between them"
                )
                open_groups[groups[rollout]].remove(rollout)
                open_groups = {group: members for group, members in open_groups.items() if members}
    worst = LiveGroups(AdmissionSettings(1, B, window=window)).worst_lag
    assert worst is not None and max(made.trained_lags()) <= worst


async def test_without_a_window_no_finished_group_waits_for_an_unfinished_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    strict = await run_well(world(staleness={"window": 1, "max_lag": 20}))
    free = await run_well(world(staleness={"max_lag": 20}))
    assert free.seconds < 0.9 * strict.seconds


async def test_a_rollout_is_trained_before_its_group_is_complete_by_a_baseline_of_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made = world(
        train={"unit": "rollout", "advantage": "first_k", "prior_visits": 3.0},
        rollout={"k_min": 2},
        task={"train_size": 6},
    )
    await run_well(made)
    rewards: dict[int, float] = {}
    members: dict[int, range] = {}
    items: dict[int, int] = {}
    order: list[int] = []
    early = 0
    taken: dict[int, list[int]] = {}
    judged_then: dict[int, set[int]] = {}
    for event in made.log.events:
        match event:
            case e.Admitted():
                members[event.group] = range(event.first, event.first + event.size)
                items[event.group] = event.prompt_index
            case e.Judged(rollout, Scored(reward)):
                rewards[rollout] = reward
                order.append(rollout)
            case e.Taken():
                for rollout in event.rollouts:
                    taken.setdefault(event.step, []).append(rollout)
                    siblings = next(group for group in members.values() if rollout in group)
                    judged_then[rollout] = {other for other in siblings if other in rewards}
                    early += len(judged_then[rollout]) < GROUP
            case _:
                pass
    assert early, "somebody is trained while siblings are still generated"
    assert {step: len(rollouts) for step, rollouts in taken.items()} == dict.fromkeys(
        range(8), B * GROUP
    )
    samples = [sample for batch, _ in made.learner.batches for sample in batch.samples]
    alone = [
        sample
        for sample in samples
        if min(items) == sample.group
        or items[sample.group] not in list(items.values())[: sample.group]
    ]
    assert alone, "prompts that were never visited before have no prior"
    for sample in alone:
        others = [
            rewards[other]
            for other in order
            if other in members[sample.group] and other != sample.rollout
        ]
        assert sample.baseline == pytest.approx(sum(others[:2]) / 2)
    assert any(sample.baseline not in (0.0, 0.5, 1.0) for sample in samples), "the others have one"


@pytest.mark.explore
async def test_of_single_rollouts_what_has_no_verdict_or_no_signal_leaves_by_name(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def verdict(split: Split, prompt_index: int, ids: bytes) -> Verdict:
        return (
            NoVerdict("refused")
            if prompt_index % 3 == 0
            else Scored(1.0 if prompt_index % 3 == 1 else float(len(ids) > 40))
        )

    made = world(
        train={"unit": "rollout", "advantage": "first_k", "prior_visits": 0.0, "steps": 4},
        rollout={"filter": "zero_variance"},
    )
    made.verifiers._verdict = verdict
    await run_well(made)
    assert set(made.store.experience.ledger.rollouts.discarded) >= {"no_verdict", "zero_variance"}
    for batch, _ in made.learner.batches:
        assert all(sample.reward != sample.baseline for sample in batch.samples)


async def test_a_budget_of_tokens_closes_a_step(autojump_clock: trio.testing.MockClock) -> None:
    made = await run_well(
        world(train={"step_tokens": 80, "steps": 6, "micro_tokens": 64}, staleness={"depth": 2})
    )
    tokens: Counter[int] = Counter()
    last: dict[int, int] = {}
    for batch, _ in made.learner.batches:
        tokens[batch.step] += sum(sample.response_tokens for sample in batch.samples)
        last[batch.step] = batch.samples[-1].group
    for batch, _ in made.learner.batches:
        of_last = sum(
            s.response_tokens
            for b, _ in made.learner.batches
            for s in b.samples
            if s.group == last[batch.step]
        )
        assert 80 <= tokens[batch.step] < 80 + of_last, "no group more than it takes"


async def test_trained_groups_are_trained_once_more_with_the_versions_that_sampled_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made = await run_well(world(train={"replay_groups": 1}))
    steps: dict[int, list[int]] = {}
    for batch, _ in made.learner.batches:
        for group in {sample.group for sample in batch.samples}:
            steps.setdefault(group, [])
            if batch.step not in steps[group]:
                steps[group].append(batch.step)
    again = {group: found for group, found in steps.items() if len(found) > 1}
    assert again and all(len(found) == 2 for found in again.values())
    replays = [event for event in made.log.events if isinstance(event, e.Replayed)]
    assert sorted(group for event in replays for group in event.groups) == sorted(again)
    assert all(
        len(event.groups) == 1 and event.step == again[event.groups[0]][1] for event in replays
    )
    assert made.store.experience.ledger.tokens.trained == sum(
        event.trained for event in made.log.events if isinstance(event, e.Trained)
    ), "the ledger counts a token once"


async def test_the_trainer_is_given_what_it_has_to_score_before_each_step_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made = await run_well(world(staleness={"proximal": "boundary"}))
    scored: dict[int, dict[int, int]] = {}
    for message in made.learner.to_score:
        for sample in message.samples:
            scored.setdefault(message.step, {})[sample.rollout] = sample.response_tokens
            assert sample.rollout in message.live
        assert message.oldest is not None and message.oldest <= message.step
    assert set(scored) and max(len(found) for found in scored.values()) > 1
    known = Counter[int]()
    for step in sorted(scored):
        for rollout, tokens in scored[step].items():
            assert tokens > known[rollout], "nothing is scored twice"
            known[rollout] = tokens


async def test_batch_relative_advantages_are_given_the_rewards_of_the_whole_step(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made = await run_well(world(train={"advantage": "reinforce_pp", "micro_tokens": 64}))
    by_step: dict[int, set[int]] = {}
    for batch, _ in made.learner.batches:
        by_step.setdefault(batch.step, set()).update(sample.group for sample in batch.samples)
    assert max(batch.index for batch, _ in made.learner.batches) > 0
    for batch, _ in made.learner.batches:
        assert set(batch.rewards) == by_step[batch.step] and len(batch.rewards) == B
        assert {group: len(of) for group, of in batch.lengths.items()} == {
            group: len(of) for group, of in batch.rewards.items()
        }
        for sample in batch.samples:
            assert sample.member is not None
            assert batch.lengths[sample.group][sample.member] == sample.sampled_tokens


async def test_groups_of_equal_rewards_are_trained_where_they_have_a_signal(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Relative to the step a group of ones is better than a group of zeros."""

    def verdict(split: Split, prompt_index: int, ids: bytes) -> Verdict:
        return Scored(float(prompt_index % 2))

    made = world(rollout={"filter": "zero_variance"}, train={"advantage": "reinforce_pp"})
    made.verifiers._verdict = verdict
    await run_well(made)
    assert not any(isinstance(event, e.Dropped) for event in made.log.events)
    trained = {sample.reward for batch, _ in made.learner.batches for sample in batch.samples}
    assert trained == {0.0, 1.0}


@pytest.mark.explore
async def test_more_groups_are_started_where_the_filter_leaves_many_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def verdict(split: Split, prompt_index: int, ids: bytes) -> Verdict:
        return Scored(float(len(ids) > 40) if prompt_index % 4 == 0 else 1.0)

    made = world(
        rollout={"filter": "zero_variance", "group_size": 9},
        train={"steps": 10},
        staleness={"max_lag": 6},
    )
    made.verifiers._verdict = verdict
    await run_well(made)
    live = LiveGroups(AdmissionSettings(1, B)).max_live
    assert live < max(live_over_time(made)) <= min(4 * live, 7 * B)


async def test_a_filter_that_leaves_hardly_anything_ends_the_run_by_name(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def verdict(split: Split, prompt_index: int, ids: bytes) -> Verdict:
        return Scored(float(len(ids) > 40) if prompt_index % 20 == 0 else 1.0)

    made = world(
        rollout={
            "filter": "zero_variance",
            "group_size": 9,
            "accept_floor": 0.5,
            "filter_patience": 30,
        },
        train={"steps": 50},
    )
    made.verifiers._verdict = verdict
    outcome = await made.run()
    assert not outcome.ok and "accept_floor" in outcome.reason and "filter = none" in outcome.reason


def stale(made: ScriptedWorld) -> bool:
    return any(
        isinstance(event, e.Dropped) and event.reason == "stale" for event in made.log.events
    )


@pytest.mark.explore
@pytest.mark.parametrize(
    ("variable", "text", "changed"),
    [
        ("ASYNCRL_MAX_LAG", "1", lambda made: max(made.trained_lags()) == 1),
        ("ASYNCRL_DEPTH", "2", lambda made: max(live_over_time(made)) == 3 * B),
        ("ASYNCRL_WINDOW", "1", lambda made: max(made.trained_lags()) <= 1 and not stale(made)),
        ("ASYNCRL_ON_STALE", "drop", stale),
        ("ASYNCRL_OVERPROVISION", "2", lambda made: max(live_over_time(made)) == 3 * B),
    ],
)
async def test_a_variable_changes_the_run(
    variable: str,
    text: str,
    changed: Callable[[ScriptedWorld], bool],
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Not only the configuration: what is admitted, taken and trained."""
    for environ, due in (({}, False), ({variable: text}, True)):
        made = world(
            staleness={"max_lag": 1 if variable == "ASYNCRL_ON_STALE" else 2}, train={"steps": 16}
        )
        section, _, name = VARIABLES[variable].partition(".")
        if environ:
            value = getattr(getattr(load(None, (), environ), section), name)
            table = msgspec.structs.replace(getattr(made.config, section), **{name: value})
            made.config = msgspec.structs.replace(made.config, **{section: table})
        assert changed(await run_well(made)) is due
