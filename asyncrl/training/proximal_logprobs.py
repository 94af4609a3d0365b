"""Log-probabilities of tokens under the version that sampled them, after that version ended.
Invariant: a token has the score of its own version or NaN, never that of another version.

There are two ways. With the weights of every version that may be needed, a token is scored when it
is trained (`snapshot`). Or it is scored just before its version ends, by the learner's own model,
and the score is kept until it is trained (`boundary`): four bytes a token of live rollouts. For
tokens that arrive after that, the weights of versions that engines still use are held: of one,
where a publication takes less than a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.messages import Sample, ScoreProximal
from asyncrl.training.batch import shown_texts, versions
from asyncrl.training.forward import shares
from asyncrl.training.packing import PackedBatch, part_of
from asyncrl.training.ranks.by_all import scored_by_all
from asyncrl.training.ranks.rank import ALONE, Rank
from asyncrl.training.shown_images import TrainedImages
from asyncrl.training.snapshots import Snapshots
from asyncrl.training.stored_state import StoredRows, whole_of

_ROLLOUTS, _STRANDS, _LENGTHS, _SCORES = "rollouts", "strands", "lengths", "scores"
_WEIGHTS = "weights/"


class ProximalLogprobs:
    """Scores of the sequences of rollouts, by rollout and strand, each float32 from the first
    response token on, and the weights of `most` versions at most."""

    def __init__(
        self,
        model: PreTrainedModel,
        temperature: float,
        most: int,
        rank: Rank = ALONE,
        images: TrainedImages | None = None,
    ) -> None:
        self.snapshots = Snapshots(model, most, rank)
        self._model, self._temperature, self._rank = model, temperature, rank
        self._images = images
        self._scores: dict[tuple[int, int], NDArray[np.float32]] = {}
        self._trained: set[int] = (
            set()
        )  # in this step: it is not known yet whether they are trained again
        self._oldest = -1

    @property
    def rollouts(self) -> list[int]:
        """Rollouts that have scores."""
        return sorted({rollout for rollout, _ in self._scores})

    def score_proximal(
        self, message: ScoreProximal, buffers: Sequence[memoryview | bytes], version: int
    ) -> None:
        """Score the tokens of `message` that have no score yet and were sampled under `version`,
        the model's own, or under one whose weights are held; forget rollouts that are not live.
        Raises ValueError where the buffer does not fit the message, or images cannot be read."""
        if len(buffers) != 1:
            raise ValueError(f"texts to be scored come with 1 buffer, not {len(buffers)}")
        if message.samples:
            every = shown_texts(
                message.samples,
                np.frombuffer(buffers[0], "<i4"),
                message.images,
                self._images,
                shared=shares(self._model),
                device=self._model.device.type,
            )
            of_token, scores = (
                torch.from_numpy(versions(message.samples)),
                self.known(message.samples),
            )
            now = _parts(every, torch.isnan(scores) & (of_token == version))
            found = scored_by_all(self._rank, self._model, now, self._temperature)
            _enter(scores, now, found)
            scores = self.completed(scores, every, of_token, torch.ones_like(scores).bool())
            self._keep(message.samples, scores)
        live = self._trained.union(message.live)
        self._oldest = version if message.oldest is None else min(version, message.oldest)
        self._scores = {of: scores for of, scores in self._scores.items() if of[0] in live}

    def remember(self, samples: Sequence[Sample], scores: Tensor) -> None:
        """Keep the scores of trained rollouts that may be trained again, float32 [tokens], NaN
        where unknown."""
        self._keep(samples, scores)
        self._trained.update(sample.rollout for sample in samples)

    def _keep(self, samples: Sequence[Sample], scores: Tensor) -> None:
        for sample, piece in zip(
            samples,
            torch.split(scores, [sample.sampled_tokens for sample in samples]),
            strict=True,
        ):
            self._scores[sample.rollout, sample.strand] = piece.numpy().copy()

    def known(self, samples: Sequence[Sample]) -> Tensor:
        """The scores that are kept of the samples' response tokens, float32 [tokens], NaN where
        there is none."""
        return torch.from_numpy(
            np.concatenate(
                [
                    np.zeros(0, np.float32),
                    *(self._of((s.rollout, s.strand), s.sampled_tokens) for s in samples),
                ]
            )
        )

    def _of(self, sequence: tuple[int, int], tokens: int) -> NDArray[np.float32]:
        kept = self._scores.get(sequence, np.zeros(0, np.float32))[:tokens]
        return np.concatenate([kept, np.full(tokens - len(kept), np.nan, np.float32)])

    def completed(
        self, scores: Tensor, every: Sequence[PackedBatch], version: Tensor, asked: Tensor
    ) -> Tensor:
        """`scores` of a micro-batch's response tokens, where `asked` (bool) NaN scores are computed
        if the weights of their `version` (int64) are held. All are [tokens]; `every` are the packed
        batches, and all ranks call this alike."""
        scores = scores.clone()
        for held in self.snapshots.versions:
            wanted = _parts(every, asked & torch.isnan(scores) & (version == held))
            if wanted:
                _enter(scores, wanted, self.snapshots.scores(held, wanted, self._temperature))
        return scores

    def close(self, version: int) -> None:
        """Hold the weights of `version`, which the model is about to leave, and release those of
        versions without further tokens."""
        self.snapshots.keep(version)
        self.snapshots.release(self._oldest - 1)
        self._trained.clear()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of all of its state, for a checkpoint; of several ranks the shards."""
        for name, tensor in self.snapshots.tensors():
            yield _WEIGHTS + name, tensor
        if self._scores:
            yield _ROLLOUTS, torch.tensor([rollout for rollout, _ in self._scores])
            yield _STRANDS, torch.tensor([strand for _, strand in self._scores])
            yield _LENGTHS, torch.tensor([len(scores) for scores in self._scores.values()])
            yield _SCORES, torch.from_numpy(np.concatenate(list(self._scores.values())))

    def restore(self, tensors: Mapping[str, Tensor | StoredRows]) -> None:
        """Load the result of `tensors`. Raises ValueError, and changes nothing, where it is of
        another model or damaged."""
        scores = dict[tuple[int, int], NDArray[np.float32]]()
        if _SCORES in tensors:
            try:
                rollouts, strands, lengths = (
                    whole_of(tensors[name]).tolist() for name in (_ROLLOUTS, _STRANDS, _LENGTHS)
                )
                pieces = torch.split(whole_of(tensors[_SCORES]), lengths)
            except (KeyError, RuntimeError) as error:
                raise ValueError(f"scores of rollouts do not fit their lengths: {error}") from error
            scores = {
                (rollout, strand): piece.numpy().copy()
                for rollout, strand, piece in zip(rollouts, strands, pieces, strict=True)
            }
        prefix = len(_WEIGHTS)
        self.snapshots.restore(
            {name[prefix:]: tensor for name, tensor in tensors.items() if name.startswith(_WEIGHTS)}
        )
        self._scores = scores


def _parts(every: Sequence[PackedBatch], wanted: Tensor) -> list[PackedBatch]:
    """The packed batches with the wanted tokens alone (bool [tokens of the micro-batch]), without
    those that have none."""
    return [
        part_of(packed, wanted[packed.tokens]) for packed in every if wanted[packed.tokens].any()
    ]


def _enter(scores: Tensor, batches: Sequence[PackedBatch], found: Sequence[Tensor]) -> None:
    """Enter what was found for packed batches into `scores` of their micro-batch's tokens."""
    for packed, of_packed in zip(batches, found, strict=True):
        scores[packed.tokens] = of_packed
