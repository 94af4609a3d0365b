"""The turn and the source of a token, as a learner tells them to corrections and objectives: of
which turn of its episode it is, and whether the run's policy has sampled it."""

from __future__ import annotations

import copy
import math

import torch
from test_learner import assert_close, run
from test_seeupo import episodes, turn_of
from test_updates import groups, learner
from training_world import TEMPERATURE, alone, build

from asyncrl.messages import Span
from asyncrl.staleness.corrections.step_entropy import StepEntropy


def test_turns_are_kept_whole_by_their_mean_entropy() -> None:
    """Over all micro-batches of the step, and again with one for each rollout."""
    every = episodes(4)
    model = copy.deepcopy(build("qwen3")).double().eval()
    of_turns = dict[tuple[int, int], list[float]]()
    for rollout in every:
        ids = torch.tensor([rollout.prompt + rollout.response])
        with torch.no_grad():
            logs = (model(input_ids=ids).logits[0] / TEMPERATURE).log_softmax(-1)
        for t, turn in enumerate(turn_of(rollout)):
            row = logs[len(rollout.prompt) - 1 + t]
            if rollout.mask[t]:
                entropy = -float((row.exp() * row).sum())
                of_turns.setdefault((rollout.number, turn), []).append(entropy)
    ranked = sorted(of_turns, key=lambda one: -sum(of_turns[one]) / len(of_turns[one]))
    kept = ranked[: math.ceil(0.6 * len(ranked))]
    for parts in ([every], [[rollout] for rollout in every]):
        _, metrics, counts = run(learner((StepEntropy(share=0.6),)), parts)
        for rollout in every:
            tokens = sum(len(of_turns[one]) for one in kept if one[0] == rollout.number)
            assert counts[rollout.number].trained == tokens
        assert 0 < metrics["kept_fraction"] < 1


def test_foreign_tokens_of_unknown_probability_get_the_gradient_of_their_shaping() -> None:
    every = groups(5, noise=0.02)
    for rollout in every[::3]:
        rollout.spans = [Span(0, 0, len(rollout.response), source="file")]
        rollout.behaviour = [math.nan] * len(rollout.response)
    model = copy.deepcopy(build("qwen3")).double().eval()
    losses = list[torch.Tensor]()
    for n, rollout in enumerate(every):
        rewards = [r.reward for r in every if r.group == rollout.group]
        a = rollout.reward - sum(rewards) / len(rewards)
        for t, current in enumerate(alone(model, rollout, TEMPERATURE)):
            if rollout.mask[t]:
                p = current.exp()
                own = (current - rollout.behaviour[t]).exp()  # inside of the bounds
                losses.append(-a * (own if n % 3 else p / (p + 0.1)))
    torch.stack(losses).mean().backward()
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    for passes in (1, 2):
        subject = learner(objective="luffy", passes=passes)
        gradients, metrics, _ = run(subject, [every[:6], every[6:]])
        assert metrics["clip_fraction"] == 0 or passes > 1
        if passes == 1:
            assert_close(gradients, expected, 1e-4)
