"""An episode of several sequences is trained as one rollout: its advantage is its own whatever its
strands, and in a mean over rollouts it counts once."""

from __future__ import annotations

import copy

import msgspec
import numpy as np
import pytest
import torch
from test_learner import assert_close
from test_loss_mean import BUDGET, learner
from training_world import VOCABULARY, Rollout, alone, build

from asyncrl.actors.coordinator.sequences import by_rollout
from asyncrl.config.schema import StalenessConfig
from asyncrl.experience.episode import Strand, Turn, path_counts, sequences
from asyncrl.experience.sequence import TrainingSequence, joined_behaviour, joined_ids
from asyncrl.messages import MicroBatch, ScoreProximal, Span, TokenCount
from asyncrl.training.proximal_logprobs import ProximalLogprobs

REWARDS, STRANDS = [1.0, 0.0, 0.0, 1.0], [1, 3, 2, 1]


def episodes() -> list[list[Rollout]]:
    """Each a list of its strands, of uneven lengths, sampled by a policy near the model's own."""
    rng, model, made = np.random.default_rng(5), build("qwen3"), []
    for number, (reward, strands) in enumerate(zip(REWARDS, STRANDS, strict=True)):
        of_one = []
        for _ in range(strands):
            ids = rng.integers(0, VOCABULARY, 14).tolist()
            one = Rollout(number, 0, reward, ids[:4], ids[4 : 4 + int(rng.integers(1, 10))])
            own = alone(model, one, 1.0).detach().numpy()
            one.behaviour = (own + rng.normal(0, 0.1, len(own))).astype(np.float32).tolist()
            of_one.append(one)
        made.append(of_one)
    return made


def message(made: list[list[Rollout]]) -> tuple[MicroBatch, list[bytes]]:
    samples, flat = [], [one for of_one in made for one in of_one]
    for member, of_one in enumerate(made):
        tokens = sum(len(one.response) for one in of_one)
        for strand, one in enumerate(of_one):
            share = len(one.response) / tokens
            samples.append(
                msgspec.structs.replace(one.sample, member=member, strand=strand, share=share)
            )
    return MicroBatch(0, 0, samples, {0: REWARDS}), [
        np.array([i for one in flat for i in one.prompt + one.response], np.int32).tobytes(),
        np.array([b for one in flat for b in one.behaviour], np.float32).tobytes(),
        np.ones(sum(len(one.response) for one in flat), np.uint8).tobytes(),
    ]


@pytest.mark.parametrize(
    ("mean", "passes"), [("rollout", 2), ("token", 1), ("rollout", 1), ("constant", 1)]
)
def test_an_episode_with_more_strands_weighs_no_more(mean: str, passes: int) -> None:
    """Of several passes the first has the weights that the step starts from."""
    made, exact = episodes(), copy.deepcopy(build("qwen3")).double().eval()
    of_episode = []
    for of_one, reward in zip(made, REWARDS, strict=True):
        advantage = reward - sum(REWARDS) / len(REWARDS)
        losses = []
        for one in of_one:
            behaviour = torch.tensor(one.behaviour, dtype=torch.float64)
            ratio = (alone(exact, one, 1.0) - behaviour).exp()
            bounded = ratio.clamp(0.8, 1.28)
            losses.append(-torch.minimum(ratio * advantage, bounded * advantage))
        of_episode.append(torch.cat(losses))
    match mean:
        case "token":
            expected = torch.cat(of_episode).mean()
        case "rollout":
            expected = torch.stack([losses.mean() for losses in of_episode]).mean()
        case _:
            expected = torch.cat(of_episode).sum() / (BUDGET * len(made))
    expected.backward()
    subject = learner(StalenessConfig(correction=()), loss_mean=mean, passes=passes)
    counts, gradients = subject.accumulate(*message(made)), {}
    hook = subject.optimizer.register_step_pre_hook(
        lambda *_: gradients.update(
            {n: p.grad.clone() for n, p in subject.model.named_parameters() if p.grad is not None}
            if not gradients
            else {}
        )
    )
    metrics = subject.step()
    hook.remove()
    counts = counts or subject.counts
    if passes == 1:
        assert metrics["loss"] == pytest.approx(float(expected.detach()), abs=1e-5)
    assert_close(
        gradients, {n: p.grad for n, p in exact.named_parameters() if p.grad is not None}, 1e-4
    )
    tokens = [sum(len(one.response) for one in of_one) for of_one in made]
    assert by_rollout(counts) == [TokenCount(n, size, {}) for n, size in enumerate(tokens)]


TURN_REWARDS = [[0.75], [0.0, -0.5, 0.25, 0.0], [0.0, 0.5], [1.0]]
LIE = [[[0]], [[0, 3], [2], [1]], [[1], [0]], [[0]]]  # the turns of each strand


def turns_of(made: list[list[Rollout]]) -> list[list[list[tuple[int, int]]]]:
    """The turns of each strand and their tokens: where there are two, the first has one."""
    return [
        [
            [(turns[0], len(one.response))]
            if len(turns) == 1
            else [(turns[0], 1), (turns[1], len(one.response) - 1)]
            for one, turns in zip(of_one, lie, strict=True)
        ]
        for of_one, lie in zip(made, LIE, strict=True)
    ]


@pytest.mark.parametrize("updates", [{}, {"passes": 2}])
def test_by_turn_a_token_is_credited_with_what_was_to_come(updates: dict[str, int]) -> None:
    made, exact = episodes(), copy.deepcopy(build("qwen3")).double().eval()
    turns = turns_of(made)
    to_go = [
        [reward - sum(of_turns[:turn]) for turn in range(len(of_turns))]
        for reward, of_turns in zip(REWARDS, TURN_REWARDS, strict=True)
    ]
    losses = []
    for member, of_one in enumerate(made):
        for one, of_strand in zip(of_one, turns[member], strict=True):
            at, logs = 0, alone(exact, one, 1.0)
            for turn, tokens in of_strand:
                there = [row[turn] if turn < len(row) else 0.0 for row in to_go]
                advantage = there[member] - sum(there) / len(there)
                behaviour = torch.tensor(one.behaviour[at : at + tokens], dtype=torch.float64)
                ratio = (logs[at : at + tokens] - behaviour).exp()
                bounded = ratio.clamp(0.8, 1.28)
                losses.append(-torch.minimum(ratio * advantage, bounded * advantage))
                at += tokens
    expected = torch.cat(losses).mean()
    expected.backward()
    batch, buffers = message(made)
    samples = [
        msgspec.structs.replace(sample, turns=turns[sample.rollout][sample.strand])
        for sample in batch.samples
    ]
    batch = msgspec.structs.replace(batch, samples=samples, turns={0: TURN_REWARDS})
    subject = learner(StalenessConfig(correction=()), credit="to_go", **updates)
    subject.accumulate(batch, buffers)
    steps: list[dict[str, torch.Tensor]] = []
    hook = subject.optimizer.register_step_pre_hook(
        lambda *_: steps.append(
            {n: p.grad.clone() for n, p in subject.model.named_parameters() if p.grad is not None}
        )
    )
    subject.step()
    hook.remove()
    assert len(steps) == 1 + bool(updates), "held, the first update is of the same weights"
    assert_close(
        steps[0], {n: p.grad for n, p in exact.named_parameters() if p.grad is not None}, 1e-4
    )


# the third strand leaves inside the first reply
PROMPT, GIVEN = [3, 1, 4, 1], [5, 9]
TURNS = [Turn(4, "stop"), Turn(3, "stop"), Turn(2, "stop"), Turn(1, "stop")]
TREE = [
    Strand(None, 0, [np.array(PROMPT, np.int32).tobytes(), 0, np.array(GIVEN, np.int32).tobytes()]),
    Strand(0, 8, [np.array([2], np.int32).tobytes(), 2]),
    Strand(0, 6, [np.array([6, 5], np.int32).tobytes(), 3]),
]
TREE[0].pieces.append(1)


@pytest.mark.parametrize("updates", [{}, {"passes": 2}])
def test_where_branches_count_whole_they_are_trained_like_sequences_of_their_own(
    updates: dict[str, int],
) -> None:
    """Against each branch as a sequence by itself, in which all that was sampled is trained."""
    rng, exact = np.random.default_rng(7), copy.deepcopy(build("qwen3")).double().eval()
    sampled, other = rng.integers(0, VOCABULARY, 10), rng.integers(0, VOCABULARY, 5)
    behaviour = {"tree": rng.normal(-3, 0.1, 10), "other": rng.normal(-3, 0.1, 5)}

    def losses(path: list[int], places: dict[int, float], advantage: float) -> torch.Tensor:
        """Of a sequence by itself, some of whose tokens were sampled so likely."""
        every = torch.log_softmax(exact(input_ids=torch.tensor([path])).logits[0], -1)
        of_tokens = []
        for at, before in places.items():
            ratio = (every[at - 1, path[at]] - before).exp()
            of_tokens.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage))
        return torch.stack(of_tokens)

    s, b = sampled.tolist(), np.float32(behaviour["tree"]).tolist()
    branches = [
        (PROMPT + s[:4] + GIVEN + s[4:7], dict(zip([4, 5, 6, 7, 10, 11, 12], b[:7], strict=True))),
        (
            PROMPT + s[:4] + [2] + s[7:9],
            dict(zip([4, 5, 6, 7, 9, 10], b[:4] + b[7:9], strict=True)),
        ),
        (PROMPT + s[:2] + [6, 5] + s[9:], dict(zip([4, 5, 8], b[:2] + b[9:], strict=True))),
    ]
    single = PROMPT + other.tolist(), dict(enumerate(np.float32(behaviour["other"]).tolist(), 4))
    every = [losses(*branch, 0.5) for branch in branches] + [losses(*single, -0.5)]
    expected = torch.cat(every).mean()
    expected.backward()

    arrays = sampled.astype(np.int32).tobytes(), behaviour["tree"].astype(np.float32).tobytes()
    of_tree = sequences(*arrays, [Span(0, 0, 10)], TURNS, TREE)
    runs = path_counts(TURNS, TREE)
    assert runs == [[(3, 2), (2, 2), (1, 3)], [(1, 2)], [(1, 1)]]
    alone_ = TrainingSequence.single_turn(
        np.array(PROMPT, np.int32).tobytes(),
        other.astype(np.int32).tobytes(),
        behaviour["other"].astype(np.float32).tobytes(),
        [Span(0, 0, 5)],
    )
    samples = [
        one.sample(0, 0, 1.0, member=0, strand=strand, path_counts=of_one)
        for strand, (one, of_one) in enumerate(zip(of_tree, runs, strict=True))
    ] + [alone_.sample(1, 0, 0.0, member=1)]
    flat = [*of_tree, alone_]
    buffers = [joined_ids(flat), joined_behaviour(flat), b"\x01" * 15]
    subject = learner(StalenessConfig(correction=()), branches="branch", **updates)
    counts = subject.accumulate(MicroBatch(0, 0, samples, {0: [1.0, 0.0]}), buffers)
    steps: list[dict[str, torch.Tensor]] = []
    hook = subject.optimizer.register_step_pre_hook(
        lambda *_: steps.append(
            {n: p.grad.clone() for n, p in subject.model.named_parameters() if p.grad is not None}
        )
    )
    metrics = subject.step()
    hook.remove()
    if not updates:
        assert metrics["loss"] == pytest.approx(float(expected.detach()), abs=1e-5)
        assert by_rollout(counts) == [TokenCount(0, 10, {}), TokenCount(1, 5, {})], "counted once"
    assert_close(
        steps[0], {n: p.grad for n, p in exact.named_parameters() if p.grad is not None}, 1e-4
    )


def test_the_scores_of_strands_are_kept_apart_and_come_back() -> None:
    made, model = episodes(), build("qwen3")
    batch, (ids, _, _) = message(made)
    subject, again = ProximalLogprobs(model, 1.0, 1), ProximalLogprobs(model, 1.0, 1)
    subject.score_proximal(ScoreProximal(0, batch.samples, [0, 1, 2]), [ids], 0)
    again.restore(dict(subject.tensors()))
    for scores in (subject, again):
        assert scores.rollouts == [0, 1, 2], "3 does not live"
        of_live = [sample for sample in batch.samples if sample.rollout < 3]
        expected = torch.cat([alone(model, one, 1.0) for of_one in made[:3] for one in of_one])
        assert torch.allclose(scores.known(of_live).double(), expected.detach(), atol=1e-5)
