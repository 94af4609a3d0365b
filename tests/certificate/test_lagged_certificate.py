"""The certificate with a lag: a run in which every step but the first learns from the version
before its own is a plain loop that does so, with every part of the loss at work.

At lag 0 behaviour, proximal and current policy are one, every ratio is 1, and no clip, band or
weight is seen (`test_certificate.py`). Here all three differ.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import msgspec
import pytest
import torch
import trio
from certificate_world import RealLearner, RealWorld, Staged, random_model, short
from lagged_loop import Behind, Lagged, Seen
from plain_loop import Outcome
from scripted_parts import ScriptedTask
from some_values import some
from test_certificate import rules
from torch import nn

from asyncrl.config import Config
from asyncrl.experience import events as e
from asyncrl.messages import Prepare, ScoreProximal
from asyncrl.staleness.corrections import Correction, IcePop, TokenTis

ROUNDING = 3e-6
"""Distance that five steps in float32 may be away from float64, in the loss and in the weights
(`apart`)."""
SEEN = 100 * ROUNDING
"""A planted error moves the weights by more than this."""
BAND = IcePop(lo=0.75, hi=1.2)


def lagged(
    steps: int = 5,
    clip: tuple[float, float] = (0.02, 0.05),
    corrections: tuple[Correction, ...] = (BAND,),
    **staleness: object,
) -> Config:
    """At depth 1 groups are admitted for one step ahead, a window of 1 trains them in that order,
    and no rollout leaves the version that it began with. Clip and band are narrow and lopsided, so
    that each of their ends is passed."""
    exactly_1 = {"max_lag": 1, "depth": 1, "window": 1, "finish_on": "own"}
    config = short(
        engine={"slots": 16},
        train={"steps": steps, "clip_lo": clip[0], "clip_hi": clip[1]},
        staleness=exactly_1 | {"proximal": "boundary"} | staleness,
    )
    replace = msgspec.structs.replace
    return replace(config, staleness=replace(config.staleness, correction=corrections))


def skewed(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights of an engine that does not compute as the trainer does: each is off by up to 2 %."""
    return {
        name: tensor
        * (1 + 0.02 * torch.arange(tensor.numel(), dtype=tensor.dtype).sin().view_as(tensor))
        for name, tensor in weights.items()
    }


def engine_of(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, tensor in skewed(dict(model.named_parameters())).items():
            model.get_parameter(name).copy_(tensor)
    return model


class PacedLearner(RealLearner):
    """Closes a step only when all that may start before it has started, as it has in any run but
    one whose machine stands still: then nothing of the lag is left to chance."""

    def __init__(self, world: LaggedWorld) -> None:
        super().__init__(random_model(), world.config)
        self._world = world
        self.unknown = 0.0

    async def score_proximal(self, message: ScoreProximal, buffers: Sequence[memoryview]) -> None:
        await trio.to_thread.run_sync(self.learner.score_proximal, message, buffers)

    async def step(self) -> dict[str, float]:
        train, size = self._world.config.train, self._world.config.rollout.group_size
        due = min(train.steps, self.version + 2) * train.batch_groups * size
        await self._world.until(lambda: len(self._world.versions()) >= due)
        metrics = await trio.to_thread.run_sync(self.learner.step)
        self.losses.append(metrics["loss"])
        self.unknown += metrics["proximal_unknown"]
        return metrics


class LaggedWorld(RealWorld):
    """A run whose engine has weights that are a little off."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, random_model())
        self.learner: PacedLearner = PacedLearner(self)

    async def receive(self, index: int, message: Prepare) -> Staged:
        staged = await super().receive(index, message)
        return Staged(skewed(staged.weights))

    def versions(self) -> dict[int, set[int]]:
        """Versions that sampled each rollout so far, by its number: rollouts are numbered in the
        order of admission."""
        found: dict[int, set[int]] = {}
        for event in self.log.events:
            if isinstance(event, e.Extended):
                found.setdefault(event.rollout, set()).add(event.version)
        return found


async def run(config: Config) -> LaggedWorld:
    world = LaggedWorld(config)
    with trio.fail_after(300):
        outcome = await world.run()
    assert outcome.ok, outcome
    return world


def apart(weights: Mapping[str, torch.Tensor], reference: Mapping[str, torch.Tensor]) -> float:
    """Root mean square distance. Not the largest: AdamW moves a weight whose gradient is nearly 0
    as far as any other, by whatever sign rounding gives it."""
    assert weights.keys() == reference.keys()
    far = [(weights[name].double() - reference[name]).flatten() for name in reference]
    return float(torch.cat(far).square().mean().sqrt())


def plain(behind: Behind, steps: int) -> tuple[Seen, Outcome]:
    config = lagged(steps)
    told = rules(config, ScriptedTask(config))._replace(lo=BAND.lo, hi=BAND.hi)
    loop = Lagged(told, engine_of, behind)
    outcome = loop.train(random_model())
    return loop.seen, outcome


@pytest.fixture(scope="module")
def a_version_behind() -> tuple[Seen, Outcome]:
    return plain(Behind(behaviour=1, proximal=1), steps=5)


@pytest.fixture
def expected(a_version_behind: tuple[Seen, Outcome]) -> Outcome:
    return a_version_behind[1]


def test_every_part_of_the_loss_is_at_work(a_version_behind: tuple[Seen, Outcome]) -> None:
    """Else what follows would certify nothing."""
    seen, _ = a_version_behind
    assert seen.below >= 5 and seen.above >= 5 and seen.left_out >= 20
    assert seen.kept >= 150 and seen.moved / seen.kept > 0.03


async def test_pain_14_at_lag_1_tokens_losses_and_weights_are_those_of_a_plain_loop(
    expected: Outcome,
) -> None:
    world = await run(lagged())
    size = world.config.rollout.group_size * world.config.train.batch_groups
    assert world.versions() == {
        rollout: {max(0, rollout // size - 1)} for rollout in range(5 * size)
    }
    assert world.learner.unknown == 0
    assert world.responses() == expected.responses and len(expected.responses) == 5 * size
    assert world.learner.losses == pytest.approx(expected.losses, abs=ROUNDING)
    assert apart(world.learner.weights(), expected.weights) < ROUNDING


SOON = 3
"""Steps after which what is wrong is seen."""
PLANTED: dict[str, Config] = {
    "the bounds of the clip are swapped": lagged(SOON, clip=(0.05, 0.02)),
    "the ends of the band are swapped": lagged(
        SOON, corrections=(IcePop(lo=1 / BAND.hi, hi=1 / BAND.lo),)
    ),
    "weights are cut off at 1, and no token is left out": lagged(
        SOON, corrections=(TokenTis(hi=1.0),)
    ),
    "the proximal policy is the current one": lagged(SOON, proximal="recompute"),
    "the proximal policy is the behaviour policy": lagged(SOON, proximal="behaviour"),
}


@pytest.fixture(scope="module")
def soon() -> Outcome:
    return plain(Behind(behaviour=1, proximal=1), SOON)[1]


@pytest.mark.explore
@pytest.mark.parametrize("error", some(PLANTED))
async def test_a_planted_error_is_seen(error: str, soon: Outcome) -> None:
    world = await run(PLANTED[error])
    assert apart(world.learner.weights(), soon.weights) > SEEN


@pytest.mark.explore
@pytest.mark.parametrize("behind", [Behind(0, 0), Behind(2, 1), Behind(1, 2)])
def test_a_version_more_or_less_is_seen(behind: Behind, soon: Outcome) -> None:
    """Of the version that samples, and of the one that is proximal."""
    assert apart(plain(behind, SOON)[1].weights, soon.weights) > SEEN
