"""Responses that are cut at their budget, through a run in virtual time: kept, masked, or penalized
by their length."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import trio.testing
from scripted_parts import ScriptedVerifiers
from scripted_world import ScriptedWorld, configured

from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script
from asyncrl.experience import events as e
from asyncrl.messages import MicroBatch, Scored, Split

BUDGET = 20


def lengths(request: Request) -> int:
    """Of the four rollouts of a prompt: 4, 18, and two of 20 tokens, which are cut. Of each third
    prompt all are cut."""
    group, member = divmod(request.key, 4)
    return BUDGET if group % 3 == 2 else (4, 18, BUDGET, BUDGET)[member]


def some_cut(request: Request) -> Script:
    left = lengths(request) - request.prefix_tokens
    ends = "length" if lengths(request) == BUDGET else "stop"
    return Script(np.full(left, 5, np.int32), np.full(left, -1.0, np.float32), 0.01, ends)  # type: ignore[arg-type]


def short(split: Split, prompt_index: int, ids: bytes) -> Scored:
    """1 for 4 tokens, in two parts."""
    right = float(len(ids) == 4 * 4)
    return Scored(right, [right, 0.0])


async def world(truncated: str, **rollout: object) -> ScriptedWorld:
    made = ScriptedWorld(
        configured(
            task={"eval_size": 2},
            rollout={"max_new_tokens": BUDGET, "truncated": truncated, **rollout},
            train={"steps": 3, "eval_every": 0, "micro_tokens": 512},
            staleness={"max_lag": 4},
        )
    )
    made.script, made.verifiers = some_cut, ScriptedVerifiers(short, 0.05)
    outcome = await made.run()
    assert outcome.ok, outcome.reason
    assert made.coordinator_summary(outcome).balances()
    return made


def batches(made: ScriptedWorld) -> list[tuple[MicroBatch, bytes]]:
    found: list[tuple[MicroBatch, bytes]] = made.learner.batches
    return found


def dropped(made: ScriptedWorld, reason: str) -> list[int]:
    """The places in the data of the prompts whose groups were dropped for a reason."""
    events = made.log.events
    places = {event.group: event.key // 4 for event in events if isinstance(event, e.Admitted)}
    return [
        places[event.group]
        for event in events
        if isinstance(event, e.Dropped) and event.reason == reason
    ]


async def test_a_cut_response_is_trained_as_it_is(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made = await world("keep")
    assert all(set(mask) == {1} for _, mask in batches(made))
    finishes = Counter(sample.finish for batch, _ in batches(made) for sample in batch.samples)
    assert finishes["length"] > finishes["stop"] > 0, "and a sample says that it was cut"


async def test_a_masked_response_is_compared_with_and_stays_out_of_the_loss(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A group of which all is cut takes no place in a step."""
    made = await world("mask")
    trained = 0
    for batch, mask in batches(made):
        at = 0
        for sample in batch.samples:
            of_sample = mask[at : at + sample.response_tokens]
            assert set(of_sample) == ({2} if sample.finish == "length" else {1})
            assert sorted(batch.rewards[sample.group]) == [0.0, 0.0, 0.0, 1.0]
            at += sample.response_tokens
            trained += of_sample.count(1)
    ledger = made.store.experience.ledger
    assert ledger.tokens.trained == trained == 3 * 2 * (4 + 18)
    whole = dropped(made, "truncated")
    assert whole and all(place % 3 == 2 for place in whole)
    assert ledger.tokens.discarded["truncated"] == BUDGET * (3 * 2 * 2 + 4 * len(whole))


@pytest.mark.parametrize(("band", "penalties"), [(0, (0.0, -0.5, -1.0)), (2, (0.0, 0.0, -1.0))])
async def test_a_long_response_loses_its_reward_before_it_is_compared(
    band: int, penalties: tuple[float, ...], autojump_clock: trio.testing.MockClock
) -> None:
    """The penalty is one part more. Held-out answers have none, and what was right stays right."""
    made = await world("penalize", overlong_band=band, filter="zero_variance")
    of_4, of_18, cut = penalties
    for batch, mask in batches(made):
        assert set(mask) == {1}
        for group, rewards in batch.rewards.items():
            assert rewards == [1 + of_4, of_18, cut, cut]
            assert batch.parts[group] == [
                [1.0, 0.0, of_4],
                [0.0, 0.0, of_18],
                [0.0, 0.0, cut],
                [0.0, 0.0, cut],
            ]
    verdicts = [event for event in made.log.events if isinstance(event, e.Judged)]
    held_out = {
        rollout
        for event in made.log.events
        if isinstance(event, e.Admitted) and event.split == "evaluation"
        for rollout in range(event.first, event.first + event.size)
    }
    for event in verdicts:
        assert isinstance(event.verdict, Scored)
        assert (event.verdict.score is None) is (event.rollout in held_out)
    stepping = made.coordinator.parts.stepping
    assert stepping is not None and stepping.metrics["exact"] > 0


async def test_the_filter_sees_rewards_with_their_penalty(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Groups of which nothing is right differ by their lengths, unless all are equally long."""
    made = ScriptedWorld(
        configured(
            task={"eval_size": 0},
            rollout={
                "max_new_tokens": BUDGET,
                "truncated": "penalize",
                "filter": "zero_variance",
            },
            train={"steps": 2, "eval_every": 0, "micro_tokens": 512},
        )
    )
    made.script = some_cut
    made.verifiers = ScriptedVerifiers(lambda split, prompt_index, ids: Scored(0.0), 0.05)
    outcome = await made.run()
    assert outcome.ok, outcome.reason
    filtered = dropped(made, "zero_variance")
    assert filtered and all(place % 3 == 2 for place in filtered)
