import torch
from quadratic import Quadratic

from asyncrl.algorithms.objectives import ClipBounds, token_loss
from asyncrl.staleness.corrections.examples import tokens


def test_the_gradient_ends_at_the_bound() -> None:
    """Below 1 + hi the ratio is pushed up, at the bound nothing pushes, and beyond it is pulled
    back."""
    some = tokens(ratios=[1.2, 1.5, 1.8])
    learned = some.log_ratio.clone().requires_grad_()
    found = token_loss(Quadratic(), some._replace(log_ratio=learned), ClipBounds(hi=0.5))
    (gradient,) = torch.autograd.grad(found.loss.sum(), learned)
    assert torch.equal(gradient.round(decimals=3).sign(), torch.tensor([-1.0, 0.0, 1.0]))
    assert found.clipped.tolist() == [False, False, True]
