"""Log-probabilities and entropies of tokens from the inputs of a model's output layer. Invariant:
no more logits than those of a chunk of tokens exist at a time, forwards and backwards.

A chunk's logits are made in the model's type and read in float32 at least, and made again in the
backward pass, where their gradient takes their place. With p the distribution of a token at a
temperature T, H its entropy and z its logits over T,

    d log p(token) / dz = onehot(token) - p        dH / dz = -p (log p + H)

so that nothing else of a logit's size is needed. Products are of the model's type, whose kernels
sum in float32; the gradient of the layer's weight is summed over the chunks in float32 and rounded
once. (Autograd sums it in the weight's type, and in bfloat16 its error grows with the chunks.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asyncrl.training.logit_changes import Change, changed, pulled_back

LOGIT_BYTES = 2**28
"""Bytes of float32 logits that are computed at a time."""


Entropy = Literal["no", "known", "learned"]
"""Use of the entropies of tokens: none, without gradient, or with it."""


class LogitFigures(NamedTuple):
    """Of each token, float32 [tokens] (float64 of such a model): the log-probability, and the
    entropy of the distribution that it is from, in nats, where that was wanted."""

    logprob: Tensor
    entropy: Tensor | None


class Head(NamedTuple):
    """Maker of logits: an output layer (`nn.Linear`, or a kind of it that is named here), what is
    done to its results, and the temperature that they are divided by."""

    layer: nn.Linear
    changes: Sequence[Change]
    temperature: float

    @property
    def chunk(self) -> int:
        """The tokens of a chunk."""
        return max(1, LOGIT_BYTES // (4 * self.layer.weight.shape[0]))

    def figures(self, inputs: Tensor, targets: Tensor, entropy: Entropy) -> LogitFigures:
        """Figures of tokens with these ids (int64 [tokens]) by the layer's `inputs` [tokens,
        size]."""
        logprob, of_entropy = _InChunks.apply(  # type: ignore[no-untyped-call]
            inputs, self.layer.weight, self.layer.bias, targets, self, entropy
        )
        return LogitFigures(logprob, None if entropy == "no" else of_entropy)

    def each(self, inputs: Tensor) -> Iterator[Tensor]:
        """The logits over the temperature of each chunk of `inputs` [tokens, size]."""
        weight, bias = self.parameters()
        for x in torch.split(inputs, self.chunk):
            yield self.logits(x.to(weight.dtype), weight, bias)[0]

    def parameters(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the layer, in the type that it computes in."""
        weight, bias = self.layer.weight, self.layer.bias
        wide: torch.dtype = getattr(self.layer, "computes", weight.dtype)
        return weight.to(wide), None if bias is None else bias.to(wide)

    def logits(
        self, inputs: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """The logits over the temperature of `inputs` [tokens, size], in float32 at least, which
        may be overwritten; and what is needed to pull their gradient back."""
        made, kept = changed(F.linear(inputs, weight, bias), self.changes)
        if any(made is one for one in kept):
            made = made.clone()
        return exact(made).div_(self.temperature), kept


def exact(logits: Tensor) -> Tensor:
    """Logits in float32 at least: smaller types are too coarse for later computations."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class _InChunks(torch.autograd.Function):
    """Figures of tokens by the inputs and parameters of an output layer."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        head: Head,
        entropy: Entropy,
    ) -> tuple[Tensor, Tensor]:
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for z, wanted in zip(head.each(inputs), torch.split(targets, head.chunk), strict=True):
            mass = z.logsumexp(-1)
            own = z.gather(1, wanted[:, None])[:, 0] - mass
            found.append((own, mass, mass.new_empty(0) if entropy == "no" else _entropy(z, mass)))
            del z  # before there are the next chunk's
        logprob, mass, of_entropy = (torch.cat(each) for each in zip(*found, strict=True))
        ctx.save_for_backward(inputs, weight, bias, targets, mass, of_entropy)
        ctx.head, ctx.learned = head, entropy == "learned"
        if not ctx.learned:
            ctx.mark_non_differentiable(of_entropy)
        return logprob, of_entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprob: Tensor, of_entropy: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, bias, targets, mass, entropies = ctx.saved_tensors
        head: Head = ctx.head
        weight_, bias_ = head.parameters()
        x_grad = torch.empty_like(inputs) if ctx.needs_input_grad[0] else None
        summed = torch.promote_types(weight.dtype, torch.float32)
        w_grad = torch.zeros_like(weight, dtype=summed) if ctx.needs_input_grad[1] else None
        b_grad = torch.zeros_like(bias, dtype=summed) if ctx.needs_input_grad[2] else None
        for start in range(0, len(inputs), head.chunk):
            here = slice(start, start + head.chunk)
            x = inputs[here].to(weight_.dtype)
            z, kept = head.logits(x, weight_, bias_)
            entropy = (entropies[here], of_entropy[here]) if ctx.learned else None
            g = _of_logits(z, mass[here], targets[here], of_logprob[here], entropy)
            g = pulled_back(g.div_(head.temperature), kept, head.changes)
            del z, kept
            if b_grad is not None:
                b_grad += g.sum(0)
            g = g.to(weight_.dtype)
            if x_grad is not None:
                x_grad[here] = g @ weight_
            if w_grad is None:
                pass
            elif w_grad.dtype == g.dtype:
                w_grad.addmm_(g.t(), x)
            else:
                w_grad += g.t() @ x
            del g  # before there are the next chunk's
        return x_grad, w_grad, b_grad, None, None, None


def _entropy(z: Tensor, mass: Tensor) -> Tensor:
    """Entropy of each row, by its logits, which are overwritten, and the logarithm of their
    mass."""
    own = z.sub_(mass[:, None])
    p = own.exp()
    # impossible tokens contribute nothing, but 0 * -inf is NaN
    return own.masked_fill_(p == 0, 0.0).mul_(p).sum(-1).neg_()


def _of_logits(
    z: Tensor,
    mass: Tensor,
    targets: Tensor,
    of_logprob: Tensor,
    entropy: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """The gradient of logits over the temperature (`z`, which is overwritten), from those of the
    figures. `entropy`: the entropies, and the gradient of each."""
    own = z.sub_(mass[:, None])
    if entropy is None:
        g = own.exp_().mul_(-of_logprob[:, None])
    else:
        value, of_value = entropy
        p = own.exp()
        own.masked_fill_(p == 0, 0.0)
        g = own.add_(value[:, None]).mul_(of_value[:, None]).add_(of_logprob[:, None])
        g = g.mul_(p).neg_()
    return g.scatter_add_(1, targets[:, None], of_logprob[:, None])
