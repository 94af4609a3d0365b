"""A sequence to train, for Python: arrays of numbers, checked when it is made."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asyncrl.experience.sequence import TrainingSequence
from asyncrl.messages import Finish, Span
from asyncrl.tasks.answer import Answer


class Sequence:
    """Tokens, which of them the policy sampled, and the reward of them all.

    `ids` int32 [tokens]; `mask` bool [tokens], true if the policy sampled the token; `logprobs`
    float32 [sampled], their log-probabilities when they were sampled; `versions` int64 [sampled],
    the version that sampled each; `reward`, None until it has one. Sequences of one `group` answer
    one prompt, and are compared with each other. `finish` says how the response ended ("stop" or
    "length"), if that is known; `text` is the decoded response, `text_special` the same with the
    names of special tokens, and `prompt` the decoded prompt with theirs, if a sampler decoded them.

    A prompt of two tokens, and three that version 4 sampled:

    >>> one = Sequence([50, 51, 10, 11, 12], [-1.0, -2.0, -0.5], prompt_tokens=2, versions=4)
    >>> one.mask.tolist(), one.versions.tolist(), one.rewarded(1.0).reward
    ([False, False, True, True, True], [4, 4, 4], 1.0)
    """

    def __init__(
        self,
        ids: ArrayLike,
        logprobs: ArrayLike,
        *,
        prompt_tokens: int | None = None,
        mask: ArrayLike | None = None,
        versions: ArrayLike = 0,
        reward: float | None = None,
        group: int = 0,
        finish: Finish = "",
        text: str = "",
        text_special: str | None = None,
        prompt: str = "",
    ) -> None:
        """Takes lists, numpy arrays and torch tensors. Give either `prompt_tokens`, the number of
        tokens of the prompt, or the `mask`, if tokens that were not sampled (a tool's) lie between
        sampled ones. `versions` is one number for all sampled tokens, or one for each. Raises
        ValueError if these do not fit together."""
        self.ids: NDArray[np.int32] = token_ids("ids", ids)
        self.mask = _mask(len(self.ids), prompt_tokens, mask)
        sampled = int(self.mask.sum())
        self.logprobs: NDArray[np.float32] = _line("logprobs", logprobs).astype(np.float32)
        if len(self.logprobs) != sampled:
            raise ValueError(
                f"logprobs has {len(self.logprobs)} numbers, and {sampled} of the {len(self.ids)} "
                "tokens were sampled: give one for each sampled token"
            )
        if np.isnan(self.logprobs).any() or (self.logprobs > 0).any():
            raise ValueError(
                "logprobs has a number that is not a log-probability: each is at most 0"
            )
        numbers = _plain(versions)
        spread = np.full(sampled, numbers) if numbers.ndim == 0 else numbers
        self.versions: NDArray[np.int64] = _integers("versions", spread).astype(np.int64)
        if len(self.versions) != sampled:
            raise ValueError(
                f"versions has {len(self.versions)} numbers, and {sampled} tokens were sampled: "
                "give one for each of them, or one for all"
            )
        if (np.diff(self.versions) < 0).any() or (self.versions < 0).any():
            raise ValueError("versions must be 0 or more, and never fall along a sequence")
        self.reward = None if reward is None else float(reward)
        self.group, self.finish, self.text = int(group), finish, text
        self.text_special, self.prompt = text if text_special is None else text_special, prompt

    def __repr__(self) -> str:
        return (
            f"Sequence({len(self.ids)} tokens, {self.sampled_tokens} sampled, group {self.group}, "
            f"reward {self.reward})"
        )

    @property
    def sampled_tokens(self) -> int:
        return len(self.logprobs)

    @property
    def answer(self) -> Answer:
        """The response, for a verifier."""
        return Answer(
            self.text,
            finish=self.finish,
            tokens=self.sampled_tokens,
            text_special=self.text_special,
            prompt=self.prompt,
        )

    def rewarded(self, reward: float) -> Sequence:
        """The same sequence with a reward."""
        return Sequence(
            self.ids,
            self.logprobs,
            mask=self.mask,
            versions=self.versions,
            reward=reward,
            group=self.group,
            finish=self.finish,
            text=self.text,
            text_special=self.text_special,
            prompt=self.prompt,
        )

    def to_train(self) -> TrainingSequence:
        """Convert this sequence to the one form that is trained."""
        behaviour = np.zeros(len(self.ids), np.float32)
        behaviour[self.mask] = self.logprobs
        return TrainingSequence(
            ids=self.ids.astype("<i4").tobytes(),
            mask=self.mask.astype(np.uint8).tobytes(),
            behaviour=behaviour.astype("<f4").tobytes(),
            spans=tuple(self._spans()),
            finish=self.finish,
        )

    def _spans(self) -> Listed[Span]:
        """Runs of consecutive tokens that one version sampled."""
        positions = np.flatnonzero(self.mask)
        breaks = (np.diff(positions) != 1) | (np.diff(self.versions) != 0)
        edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(positions)]
        return [
            Span(int(self.versions[start]), int(positions[start]), int(positions[end - 1]) + 1)
            for start, end in pairwise(edges)
        ]


def _mask(tokens: int, prompt_tokens: int | None, mask: ArrayLike | None) -> NDArray[np.bool_]:
    if (prompt_tokens is None) == (mask is None):
        raise ValueError("say which tokens were sampled: give prompt_tokens, or mask")
    if prompt_tokens is not None:
        if not 1 <= prompt_tokens < tokens:
            raise ValueError(
                f"prompt_tokens is {prompt_tokens}, and there are {tokens} ids: a sequence has a "
                "prompt and a response, each of at least 1 token"
            )
        return np.arange(tokens) >= prompt_tokens
    items = _line("mask", mask)
    if len(items) != tokens:
        raise ValueError(f"mask has {len(items)} items, and there are {tokens} ids: give one each")
    if not np.isin(items, (0, 1)).all():
        raise ValueError("mask has an item that is neither true nor false")
    marked: NDArray[np.bool_] = items.astype(np.bool_)
    if not marked.any() or marked[0]:
        raise ValueError(
            "mask must mark at least one token as sampled, and not the first: a sequence begins "
            "with its prompt"
        )
    return marked


def token_ids(name: str, items: ArrayLike) -> NDArray[np.int32]:
    """Ids [tokens] as engines and learners take them. Raises ValueError for what is none."""
    array = _integers(name, items) if np.size(items) else np.zeros(0, np.int64)
    if array.size and (int(array.min()) < -(2**31) or int(array.max()) >= 2**31):
        raise ValueError(f"{name} has an id that no vocabulary has, beyond 32 bits")
    return array.astype(np.int32)


def _integers(name: str, items: ArrayLike) -> NDArray[Any]:
    array = _line(name, items)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} has items of type {array.dtype}, and must have whole numbers")
    return array


def _line(name: str, items: ArrayLike | None) -> NDArray[Any]:
    """An array of one dimension."""
    array = _plain(items)
    if array.ndim != 1:
        raise ValueError(f"{name} has the shape {list(array.shape)}, and must be one line of items")
    return array


def _plain(items: Any) -> NDArray[Any]:
    """Convert lists, arrays and torch tensors, also of types that numpy lacks, to an array."""
    return np.asarray(items.tolist() if hasattr(items, "detach") else items)
