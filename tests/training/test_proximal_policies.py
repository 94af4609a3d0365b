"""Every proximal policy against a naive reference that has a copy of every version, on steps whose
rollouts mix versions."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from some_values import some
from training_world import TEMPERATURE, VOCABULARY, Rollout, alone, build, micro_batch
from transformers import PreTrainedModel

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.messages import ScoreProximal, Span
from asyncrl.staleness.corrections import IcePop
from asyncrl.training.checkpoint_index import CheckpointError
from asyncrl.training.checkpoint_io import restore, save
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model

KINDS = ("behaviour", "boundary", "snapshot", "recompute", "loglinear")
TRAIN = TrainConfig(grad_clip=1e9, lr_warmup_steps=0, lr=2e-3, clip_lo=0.1, clip_hi=0.15)
BAND = IcePop(lo=0.6, hi=1.8)
STEPS = 4
Gradient = dict[str, torch.Tensor]


def settings(kind: str, max_lag: int = 3) -> StalenessConfig:
    return StalenessConfig(proximal=kind, max_lag=max_lag, correction=(BAND,))  # type: ignore[arg-type]


class Story:
    """Rollouts for each step, their tokens sampled under any version until then. The last
    `late[rollout]` tokens of a version are heard of only after the step that ends it is closed."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.steps: list[list[Rollout]] = []
        self.versions: dict[int, list[int]] = {}
        self.late: dict[int, int] = {}
        for step in range(STEPS):
            members = []
            for number in range(10 * step, 10 * step + 5):
                prompt, response = (
                    rng.integers(0, VOCABULARY, int(n)).tolist()
                    for n in (rng.integers(1, 5), rng.integers(2, 11))
                )
                rollout = Rollout(number, step, float(rng.integers(0, 2)), prompt, response)
                of_token = np.sort(rng.integers(0, step + 1, len(response))).tolist()
                rollout.spans = [
                    Span(v, of_token.index(v), of_token.index(v) + of_token.count(v))
                    for v in sorted(set(of_token))
                ]
                rollout.mask = (rng.random(len(response)) < 0.9).astype(int).tolist()
                self.versions[number], self.late[number] = of_token, int(rng.integers(0, 3))
                members.append(rollout)
            members[0].reward, members[1].reward = 0.0, 1.0
            self.steps.append(members)
        self._rng = rng
        self._noise = {
            r.number: rng.normal(0, 0.3, len(r.response)) for members in self.steps for r in members
        }
        self._under: dict[tuple[int, PreTrainedModel], np.ndarray] = {}

    def sampled(self, step: int, models: Sequence[PreTrainedModel]) -> list[Rollout]:
        """The rollouts of a step, with their behaviour: that of each token's own version, and
        noise."""
        for rollout in self.steps[step]:
            own = self.own(rollout, models)
            rollout.behaviour = (own + self._noise[rollout.number]).astype(np.float32).tolist()
        return self.steps[step]

    def own(self, rollout: Rollout, models: Sequence[PreTrainedModel]) -> np.ndarray:
        """Log-probability of each token under its own version."""
        of_version = {v: self.under(models[v], rollout) for v in set(self.versions[rollout.number])}
        return np.array([of_version[v][t] for t, v in enumerate(self.versions[rollout.number])])

    def under(self, model: PreTrainedModel, rollout: Rollout) -> np.ndarray:
        """Log-probability of each token under a version, which stays as it is."""
        if (key := (rollout.number, model)) not in self._under:
            with torch.no_grad():
                self._under[key] = alone(model, rollout, TEMPERATURE).numpy()
        return self._under[key]

    def score_proximal(
        self, step: int, behind: int = 0, oldest: int | None = None
    ) -> tuple[ScoreProximal, tuple[bytes]]:
        """Tokens known of the rollouts of later steps when `step` is closed: the last tokens of
        its version are still on their way, and all those of the `behind` versions up to it."""
        samples, ids = [], list[int]()
        living = [r for members in self.steps[step + 1 :] for r in members]
        for rollout in living:
            of_token = self.versions[rollout.number]
            known = sum(v <= step - behind for v in of_token)
            known -= min(self.late[rollout.number], of_token.count(step - behind))
            part = Rollout(
                rollout.number, rollout.group, math.nan, rollout.prompt, rollout.response[:known]
            )
            part.spans = [
                Span(s.version, s.start, min(s.end, known))
                for s in rollout.spans
                if s.start < known
            ]
            samples.append(part.sample)
            ids += part.prompt + part.response
        return ScoreProximal(step, samples, [r.number for r in living], oldest), (
            np.array(ids, np.int32).tobytes(),
        )


def proximal(
    kind: str,
    story: Story,
    rollout: Rollout,
    models: Sequence[PreTrainedModel],
    current: np.ndarray,
) -> np.ndarray:
    """Of each token, by the definitions in words."""
    step, behaviour = len(models) - 1, np.array(rollout.behaviour)
    match kind:
        case "behaviour":
            return behaviour
        case "recompute":
            return current
        case "loglinear":
            lag = step - np.array(story.versions[rollout.number])
            share = np.array(
                [
                    0.0 if n == 0 else (max(step - n, step - 1) - (step - n)) / n
                    for n in lag.tolist()
                ]
            )
            return behaviour + share * (current - behaviour)
        case _:
            return story.own(rollout, models)


def expected(
    kind: str, story: Story, step: int, models: Sequence[PreTrainedModel]
) -> tuple[Gradient, int]:
    """Gradient of the decoupled clipped loss, and how many tokens are trained, one token at a time
    in float64."""
    exact = copy.deepcopy(models[-1]).requires_grad_(True)
    losses = []
    members = story.sampled(step, models)
    rewards = [r.reward for r in members]
    for rollout in members:
        advantage = (rollout.reward - np.mean(rewards)) / np.std(rewards, ddof=1)
        current = alone(exact, rollout, TEMPERATURE)
        anchors = proximal(kind, story, rollout, models, current.detach().numpy())
        for t, keep in enumerate(rollout.mask):
            behaviour = rollout.behaviour[t]
            mismatch = math.exp(
                (float(current[t].detach()) if kind == "behaviour" else anchors[t]) - behaviour
            )
            if keep and BAND.lo <= mismatch <= BAND.hi:
                ratio = torch.exp(current[t] - anchors[t])
                clipped = torch.clamp(ratio, 1 - TRAIN.clip_lo, 1 + TRAIN.clip_hi)
                weight = 1.0 if kind == "behaviour" else mismatch
                losses.append(-weight * torch.minimum(ratio * advantage, clipped * advantage))
    torch.stack(losses).mean().backward()
    return {name: p.grad for name, p in exact.named_parameters() if p.grad is not None}, len(losses)


def frozen(model: PreTrainedModel) -> PreTrainedModel:
    return copy.deepcopy(model).double().requires_grad_(False)


def train(
    learner: Learner,
    story: Story,
    steps: Sequence[int],
    models: list[PreTrainedModel],
    behind: int = 0,
    said: bool = False,
) -> list[tuple[Gradient, dict[str, float]]]:
    """Steps with their anchors, `behind` versions; each in two micro-batches. `models` gets every
    version. With `said` the trainer knows which versions tokens may still come of."""
    seen: list[tuple[Gradient, dict[str, float]]] = []
    for step in steps:
        gradient: Gradient = {}

        def see(*_: object, into: Gradient = gradient) -> None:
            into.update(
                {
                    name: p.grad.clone()
                    for name, p in learner.model.named_parameters()
                    if p.grad is not None
                }
            )

        models.append(frozen(learner.model))
        every = story.sampled(step, models)
        hook = learner.optimizer.register_step_pre_hook(see)
        learner.accumulate(*micro_batch(every[:2], every, step))
        learner.accumulate(*micro_batch(every[2:], every, step, 1))
        if learner._staleness.proximal == "boundary":
            learner.score_proximal(
                *story.score_proximal(step, behind, max(0, step - behind) if said else None)
            )
        seen.append((gradient, learner.step()))
        hook.remove()
    return seen


@pytest.mark.parametrize("seed", some(range(2)))
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_the_definition(kind: str, seed: int) -> None:
    story, models = Story(seed), list[PreTrainedModel]()
    learner = Learner(build("qwen3"), TRAIN, settings(kind), TEMPERATURE)
    seen = train(learner, story, range(STEPS), models)
    for step, (gradient, metrics) in enumerate(seen):
        reference, trained = expected(kind, story, step, models[: step + 1])
        assert metrics["trained_tokens"] == trained and metrics["proximal_unknown"] == 0
        scale = max(float(g.abs().max()) for g in reference.values())
        for name, value in reference.items():
            assert float((gradient[name] - value).abs().max()) <= 2e-4 * scale, (step, name)


def test_versions_differ_enough_to_be_told_apart() -> None:
    """Else the test above could not fail: every two kinds train other weights on the same story."""
    weights = {}
    for kind in KINDS:
        learner = Learner(build("qwen3"), TRAIN, settings(kind), TEMPERATURE)
        seen = train(learner, Story(0), range(3), [])  # until there is a lag of 2
        weights[kind] = seen[-1][0]["model.layers.0.mlp.up_proj.weight"]
    for one in KINDS:
        for other in KINDS:
            if one < other and {one, other} != {"boundary", "snapshot"}:
                assert float((weights[one] - weights[other]).abs().max()) > 1e-2 * float(
                    weights[one].abs().max()
                ), (one, other)


def test_scored_before_its_end_or_after_it_a_version_is_the_same() -> None:
    story = Story(5)
    boundary, snapshot = (
        Learner(build("qwen3"), TRAIN, settings(kind), TEMPERATURE)
        for kind in ("boundary", "snapshot")
    )
    for learner in (boundary, snapshot):
        train(learner, story, range(STEPS), [])
    assert boundary.proximal_logprobs and boundary.proximal_logprobs.snapshots.versions == [3]
    assert snapshot.proximal_logprobs and snapshot.proximal_logprobs.snapshots.versions == [1, 2, 3]
    for one, other in zip(boundary.model.parameters(), snapshot.model.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)


def test_weights_are_held_until_no_more_tokens_come_of_them() -> None:
    """Engines that are two publications behind: what they sample is heard of two steps after its
    version."""
    learners = {
        said: Learner(build("qwen3"), TRAIN, settings("boundary"), TEMPERATURE)
        for said in (False, True)
    }
    seen = {
        said: train(learner, Story(6), range(STEPS), [], behind=2, said=said)
        for said, learner in learners.items()
    }
    assert sum(metrics["proximal_unknown"] for _, metrics in seen[False]) > 0
    assert sum(metrics["proximal_unknown"] for _, metrics in seen[True]) == 0
    snapshot = Learner(build("qwen3"), TRAIN, settings("snapshot"), TEMPERATURE)
    train(snapshot, Story(6), range(STEPS), [])
    for one, other in zip(
        learners[True].model.parameters(), snapshot.model.parameters(), strict=True
    ):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)
    assert (past := learners[True].proximal_logprobs) and past.snapshots.versions == [1, 2, 3]


def replay(kind: str, kept: bool) -> tuple[Learner, dict[str, float]]:
    """Two steps, and a third one on the rollouts of the first."""
    story, models = Story(8), list[PreTrainedModel]()
    learner = Learner(
        build("qwen3"), msgspec.structs.replace(TRAIN, replay_groups=1), settings(kind), TEMPERATURE
    )
    for step, trained in enumerate((0, 1, 0)):
        models.append(frozen(learner.model))
        every = story.steps[trained] if step == 2 else story.sampled(trained, models)
        learner.accumulate(*micro_batch(every, every, step))
        message, buffers = story.score_proximal(step)
        replay_buffer = [r.number for r in story.steps[0]] if kept and step else []
        if kind == "boundary":
            learner.score_proximal(
                msgspec.structs.replace(message, live=message.live + replay_buffer), buffers
            )
        metrics = learner.step()
    return learner, metrics


def test_what_is_trained_again_has_the_scores_of_its_own_version() -> None:
    """Tokens of lag 0 are not asked for before their step, and are of a past version when they are
    replayed."""
    (boundary, found), (snapshot, expected) = (
        replay("boundary", kept=True),
        replay("snapshot", kept=True),
    )
    assert found["proximal_unknown"] == expected["proximal_unknown"] == 0
    for one, other in zip(boundary.model.parameters(), snapshot.model.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)
    _, forgotten = replay("boundary", kept=False)
    assert forgotten["proximal_unknown"] > 0


def test_scores_of_rollouts_that_do_not_live_are_forgotten() -> None:
    story, learner = Story(1), Learner(build("qwen3"), TRAIN, settings("boundary"), TEMPERATURE)
    assert learner.proximal_logprobs
    for step in range(STEPS):
        train(learner, story, [step], [frozen(learner.model)] * step)
        assert learner.proximal_logprobs.rollouts == [
            r.number for members in story.steps[step + 1 :] for r in members
        ]


@pytest.mark.explore
@pytest.mark.parametrize("kind", ["boundary", "snapshot"])
@pytest.mark.parametrize("cut", [1, STEPS - 1])
def test_a_learner_goes_on_from_a_checkpoint_as_if_nothing_had_happened(
    kind: str, cut: int, tmp_path: Path
) -> None:
    story, models = Story(7), list[PreTrainedModel]()
    learner = Learner(build("qwen3"), TRAIN, settings(kind), TEMPERATURE)
    train(learner, story, range(cut), models)
    path = save(tmp_path / "run", learner, 0, tmp_path)
    before = list(models)
    metrics = [found for _, found in train(learner, story, range(cut, STEPS), models)]

    resumed = Learner(load_model(path), TRAIN, settings(kind), TEMPERATURE)
    restore(path, resumed)
    assert [found for _, found in train(resumed, story, range(cut, STEPS), before)] == metrics
    assert all(map(torch.equal, learner.model.parameters(), resumed.model.parameters()))


@pytest.mark.parametrize("kind", ["boundary", "snapshot"])
def test_what_is_not_known_is_counted_and_has_the_current_policy(kind: str, tmp_path: Path) -> None:
    """A resume from a checkpoint of a run that asked for no earlier version."""
    story, models = Story(2), list[PreTrainedModel]()
    plain = Learner(build("qwen3"), TRAIN, settings("recompute"), TEMPERATURE)
    train(plain, story, range(2), models)
    path = save(tmp_path / "run", plain, 0, tmp_path)
    resumed = Learner(load_model(path), TRAIN, settings(kind), TEMPERATURE)
    restore(path, resumed)
    [(gradient, metrics)] = train(resumed, story, [2], list(models))
    [(recomputed, _)] = train(plain, story, [2], models)
    old = sum(
        v < 2 and bool(keep)
        for r in story.steps[2]
        for v, keep in zip(story.versions[r.number], r.mask, strict=True)
    )
    assert metrics["proximal_unknown"] == old > 0
    assert all(
        torch.allclose(gradient[name], value, atol=1e-6) for name, value in recomputed.items()
    )


def test_what_is_too_old_for_the_memory_is_counted() -> None:
    story, learner = (
        Story(3),
        Learner(build("qwen3"), TRAIN, settings("snapshot", max_lag=2), TEMPERATURE),
    )
    seen = train(learner, story, range(STEPS), [])
    older = [
        sum(
            v < step - 2 and bool(k)
            for r in members
            for v, k in zip(story.versions[r.number], r.mask, strict=True)
        )
        for step, members in enumerate(story.steps)
    ]
    assert [metrics["proximal_unknown"] for _, metrics in seen] == older and older[-1] > 0
    assert learner.proximal_logprobs and learner.proximal_logprobs.snapshots.versions == [2, 3]


def test_scoring_leaves_a_gradient_that_is_being_accumulated_alone() -> None:
    story, learner = Story(4), Learner(build("qwen3"), TRAIN, settings("boundary"), TEMPERATURE)
    every = story.sampled(0, [frozen(learner.model)])
    learner.accumulate(*micro_batch(every, every, 0))
    before = {
        name: p.grad.clone() for name, p in learner.model.named_parameters() if p.grad is not None
    }
    learner.score_proximal(*story.score_proximal(0))
    after = {name: p.grad for name, p in learner.model.named_parameters() if p.grad is not None}
    assert before.keys() == after.keys() and all(
        torch.equal(before[name], after[name]) for name in before
    )


def test_texts_that_do_not_fit_are_refused() -> None:
    story, learner = Story(4), Learner(build("qwen3"), TRAIN, settings("boundary"), TEMPERATURE)
    message, buffers = story.score_proximal(0)
    with pytest.raises(ValueError, match="at the end of step 0 came while step 1"):
        late = Learner(build("qwen3"), TRAIN, settings("boundary"), TEMPERATURE, version=1)
        late.score_proximal(message, buffers)
    with pytest.raises(ValueError, match="the proximal policy is snapshot"):
        Learner(build("qwen3"), TRAIN, settings("snapshot"), TEMPERATURE).score_proximal(
            message, buffers
        )
    with pytest.raises(ValueError, match="with 1 buffer, not 2"):
        learner.score_proximal(message, (*buffers, b""))
    with pytest.raises(ValueError, match="token ids came for samples of"):
        learner.score_proximal(message, (buffers[0][4:],))
    assert learner.proximal_logprobs and learner.proximal_logprobs.rollouts == []


def test_the_past_of_another_model_is_refused(tmp_path: Path) -> None:
    learner = Learner(build("qwen3"), TRAIN, settings("boundary"), TEMPERATURE)
    train(learner, Story(0), [0], [])
    path = save(tmp_path / "run", learner, 0, tmp_path)
    other = Learner(build("llama"), TRAIN, settings("boundary"), TEMPERATURE)
    with pytest.raises(CheckpointError, match="is of another model"):
        restore(path, other)
    assert other.version == 0 and other.proximal_logprobs and other.proximal_logprobs.rollouts == []
