"""A micro-batch as tensors. Invariant: a sampled token has the same index in every tensor.

Later modules see only sampled tokens. Given tokens are context: they are in the forward passes, but
nothing is predicted for them. So the mask of a sequence may have any gaps, without any effect after
this module.

Python loops over samples and spans, and numpy expands them to tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.messages import ERROR_TOKEN, TRAINABLE_TOKEN, TRUNCATED_TOKEN, MicroBatch, Sample
from asyncrl.training.packing import PackedBatch, pack
from asyncrl.training.shown_images import TrainedImages


class Batch(NamedTuple):
    """The packed batches of a micro-batch, and one item for each sampled token in every tensor.

    `behaviour` is its log-probability (float32), `mask` is True where it may enter the loss (bool),
    `truncated` where it may not because its response was cut, `errors` where its verifier marked an
    error (bool), `sample_index` the index of its sample in the batch (int64), `version` the version
    that sampled it, and `lag` the step minus that (int64 >= 0). `turn` is its turn in its episode
    (int64, 0 where no agent played). `scores` are its log-probabilities
    under the policies that do not learn, by their names (float32). `share` is float32 [samples]
    (`Sample.share`), as are `weights`, of their groups; None: all 1. `leaves` says how often each
    token counts (float32); None: all once. `routing` are the records of the experts of all of
    them, in bytes; empty where there are none. `own` is True where the run's policy has sampled the
    token (bool); None: everywhere.
    """

    packed: list[PackedBatch]
    behaviour: Tensor
    mask: Tensor
    sample_index: Tensor
    version: Tensor
    lag: Tensor
    truncated: Tensor
    errors: Tensor
    share: Tensor
    turn: Tensor
    scores: Mapping[str, Tensor] = {}
    leaves: Tensor | None = None
    routing: bytes | memoryview = b""
    weights: Tensor | None = None
    own: Tensor | None = None


def read(
    batch: MicroBatch,
    buffers: Sequence[memoryview | bytes],
    *,
    shared: bool,
    device: str = "cpu",
    ranks: int = 1,
    images: TrainedImages | None = None,
) -> Batch:
    """The tensors of a micro-batch with at least one sample; common prefixes of samples are
    `shared` or not, and passes are sized for the type of `device` and `ranks` (`pack`). `images`
    are those of the run; without them prompts with images are refused. Raises ValueError where the
    buffers or the spans do not fit it, or a token is newer than the policy that the step starts
    from."""
    if len(buffers) not in (3, 4):
        raise ValueError(f"a micro-batch comes with 3 or 4 buffers, not {len(buffers)}")
    ids, behaviour, mask = (
        np.frombuffer(b, dtype) for b, dtype in zip(buffers[:3], ("<i4", "<f4", "u1"), strict=True)
    )
    version = torch.from_numpy(versions(batch.samples))
    sampled = [s.sampled_tokens for s in batch.samples]
    if not len(behaviour) == len(mask) == sum(sampled):
        raise ValueError(
            f"samples of {sum(sampled)} sampled tokens came with {len(behaviour)} "
            f"log-probabilities and {len(mask)} of mask"
        )
    lag = batch.step - version
    if len(lag) and int(lag.min()) < 0:
        raise ValueError(
            f"a token of version {int(version.max())} is newer than the policy that step "
            f"{batch.step} starts from"
        )
    return Batch(
        _shown(batch, ids, images, shared=shared, device=device, ranks=ranks),
        torch.from_numpy(behaviour.copy()),
        torch.from_numpy(mask == TRAINABLE_TOKEN),
        torch.repeat_interleave(torch.tensor(sampled)),
        version,
        lag,
        torch.from_numpy(mask == TRUNCATED_TOKEN),
        torch.from_numpy(mask == ERROR_TOKEN),
        torch.tensor([sample.share for sample in batch.samples], dtype=torch.float32),
        _turns(batch.samples),
        leaves=_leaves(batch.samples),
        routing=buffers[3] if len(buffers) == 4 else b"",
        own=_own(batch.samples),
    )


def _turns(samples: Sequence[Sample]) -> Tensor:
    """The turn of each sampled token, int64 [tokens]. Raises ValueError where the turns are not of
    a sample's tokens."""
    return _of_tokens(
        samples, "turns", [sample.turns or [(0, sample.sampled_tokens)] for sample in samples]
    )


def _of_tokens(
    samples: Sequence[Sample], what: str, runs: Sequence[Sequence[tuple[int, int]]]
) -> Tensor:
    """The value of each sampled token, int64 [tokens], from each sample's runs of values and their
    tokens. Raises ValueError where the runs are not of a sample's tokens."""
    for sample, own in zip(samples, runs, strict=True):
        if sum(tokens for _, tokens in own) != sample.sampled_tokens:
            raise ValueError(f"the {what} of rollout {sample.rollout} are not of its tokens")
    values, tokens = torch.tensor([run for own in runs for run in own]).T
    return torch.repeat_interleave(values, tokens)


def _own(samples: Sequence[Sample]) -> Tensor | None:
    """Return where the run's policy has sampled the token, bool [tokens]; None: everywhere."""
    spans = [span for sample in samples for span in sample.spans]
    if all(span.source == "own" for span in spans):
        return None
    own = torch.tensor([span.source == "own" for span in spans])
    return torch.repeat_interleave(own, torch.tensor([span.end - span.start for span in spans]))


def _shown(
    batch: MicroBatch,
    ids: NDArray[np.int32],
    images: TrainedImages | None,
    *,
    shared: bool,
    device: str,
    ranks: int,
) -> list[PackedBatch]:
    """The packed sequences of a micro-batch, with the images of its prompts."""
    named = {group: facts.images for group, facts in batch.prompts.items() if facts.images}
    return shown_texts(batch.samples, ids, named, images, shared=shared, device=device, ranks=ranks)


def shown_texts(
    samples: Sequence[Sample],
    ids: NDArray[np.int32],
    named: Mapping[int, Sequence[str]],
    images: TrainedImages | None,
    *,
    shared: bool,
    device: str = "cpu",
    ranks: int = 1,
) -> list[PackedBatch]:
    """Sequences packed by `texts`, where the prompts of some groups have images, whose hashes are
    `named`; `images` are those of the run. Raises ValueError where they cannot be read."""
    if not named and not any(sample.images for sample in samples):
        return texts(samples, ids, shared=shared, device=device, ranks=ranks)
    if images is None:
        raise ValueError("prompts have images, and this trainer was opened without those of a run")
    marked, every = images.marked(samples, ids, named)
    packed = texts(samples, marked, shared=shared, device=device, ranks=ranks)
    return [one._replace(shown=images.shown(one.ids, one.tree.paths(), every)) for one in packed]


def _leaves(samples: Sequence[Sample]) -> Tensor | None:
    """The number of times that each sampled token counts, float32; None where all count once.
    Raises ValueError where the runs are not of a sample's tokens."""
    if not any(sample.path_counts for sample in samples):
        return None
    runs = [sample.path_counts or [(1, sample.sampled_tokens)] for sample in samples]
    return _of_tokens(samples, "path counts", runs).float()


def texts(
    samples: Sequence[Sample],
    ids: NDArray[np.int32],
    *,
    shared: bool,
    device: str = "cpu",
    ranks: int = 1,
) -> list[PackedBatch]:
    """Sequences packed for forward passes (`pack`), in which only sampled tokens are predicted.
    Raises ValueError where ids and samples do not match."""
    every = pack(
        ids,
        [s.prompt_tokens for s in samples],
        [s.response_tokens for s in samples],
        shared=shared,
        device=device,
        ranks=ranks,
    )
    if all(s.sampled_tokens == s.response_tokens for s in samples):
        return every
    sampled = torch.from_numpy(_sampled(samples))
    sampled_index = torch.cumsum(sampled, dim=0) - 1
    return [_without_given(packed, sampled[packed.tokens], sampled_index) for packed in every]


def versions(samples: Sequence[Sample]) -> NDArray[np.int64]:
    """The version of each sampled token, from the spans. Raises ValueError where these do not begin
    with the first token of a response, end with its last, and ascend without overlapping."""
    for sample in samples:
        first, last = sample.prompt_tokens, sample.prompt_tokens + sample.response_tokens
        end = first
        for span in sample.spans:
            if span.start < end or span.end < span.start:
                break
            end = span.end
        else:
            if end == last and (not sample.spans or sample.spans[0].start == first):
                continue
        raise ValueError(
            f"the spans of rollout {sample.rollout} do not lie in order from the first to the last "
            f"of its response tokens [{first}, {last})"
        )
    spans = [(span.version, span.end - span.start) for sample in samples for span in sample.spans]
    of, tokens = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    return np.repeat(of, tokens)


def _sampled(samples: Sequence[Sample]) -> NDArray[np.bool_]:
    """True for each sampled token among the response tokens of all samples."""
    lengths: list[int] = []
    for sample in samples:
        end = sample.prompt_tokens
        for span in sample.spans:
            lengths += (span.start - end, span.end - span.start)
            end = span.end
    return np.repeat(np.tile([False, True], len(lengths) // 2), lengths)


def _without_given(packed: PackedBatch, sampled: Tensor, sampled_index: Tensor) -> PackedBatch:
    """The packed batch, predicting only sampled tokens (bool [tokens]). `sampled_index` is the
    index of each response token of the micro-batch among the sampled ones (int64)."""
    return packed._replace(
        logit_positions=packed.logit_positions[sampled],
        sequences=packed.sequences[sampled],
        targets=packed.targets[sampled],
        tokens=sampled_index[packed.tokens[sampled]],
    )
