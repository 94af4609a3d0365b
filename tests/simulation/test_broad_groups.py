"""Groups of hundreds of rollouts (BroRL, arXiv 2510.01180): what lives and what a micro-batch holds
is bounded, and a step waits for the verdicts of its own group alone."""

from __future__ import annotations

import pytest
from simulation_support import plain

from asyncrl.experience import events as e
from asyncrl.messages import MicroBatch
from asyncrl.simulation.checker.checker import Checker
from asyncrl.simulation.run import simulate

MICRO_TOKENS, STEPS = 256, 3


class Watch:
    """Looks at each event and micro-batch of a run."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.group_of = dict[int, int]()
        self.live, self.most_live, self.widest = set[int](), 0, 0
        self.judged_s, self.taken_s = dict[int, float](), dict[int, float]()
        self.done_s = dict[int, float]()
        self.trained = dict[int, list[int]]()
        heard, looked = Checker.on_event, Checker.on_batch

        def on_event(checker: Checker, number: int, event: e.AnyEvent) -> None:
            heard(checker, number, event)
            self.event(event, checker.clock())

        def on_batch(checker: Checker, batch: MicroBatch, *buffers: memoryview) -> None:
            looked(checker, batch, *buffers)
            tokens = sum(s.prompt_tokens + s.response_tokens for s in batch.samples)
            self.widest = max(self.widest, tokens)

        patch.setattr(Checker, "on_event", on_event)
        patch.setattr(Checker, "on_batch", on_batch)

    def event(self, event: e.AnyEvent, now: float) -> None:
        match event:
            case e.Admitted(group=group, first=first, size=size):
                members = range(first, first + size)
                self.group_of |= dict.fromkeys(members, group)
                self.live |= set(members)
                self.most_live = max(self.most_live, len(self.live))
            case e.Judged(rollout=rollout):
                self.judged_s[self.group_of[rollout]] = now
            case e.Taken(step=step, rollouts=rollouts):
                self.taken_s.setdefault(step, now)
                self.trained.setdefault(step, []).extend(rollouts)
            case e.Trained(rollout=rollout):
                self.live.remove(rollout)
                self.done_s[self.group_of[rollout]] = now


@pytest.mark.parametrize("size", [48, pytest.param(512, marks=pytest.mark.soak)])
def test_a_group_of_hundreds_is_a_group(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    config = plain(
        5,
        task={"eval_size": 0},
        engine={"slots": 16, "chunk_tokens": 8},
        rollout={"actors": 4, "group_size": size, "group_size_max": size},
        train={"steps": STEPS, "batch_groups": 1, "micro_tokens": MICRO_TOKENS},
        staleness={"max_lag": 1, "depth": 1},
    )
    report = simulate(5, config=config, faults=[])
    assert report.ok, report.violation
    assert watch.most_live == 2 * size, "the group of a step, and one that runs ahead"
    assert MICRO_TOKENS / 2 < watch.widest <= MICRO_TOKENS
    before = 0.0
    for step in range(STEPS):
        (group,) = {watch.group_of[rollout] for rollout in watch.trained[step]}
        assert len(watch.trained[step]) == size
        own = watch.judged_s[group]
        assert own <= watch.taken_s[step] <= max(own, before), "for its group, or the trainer"
        before = watch.done_s[group]
