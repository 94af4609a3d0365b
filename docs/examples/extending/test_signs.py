import torch
from signs import Signs

from asyncrl.config.schema import TrainConfig


def test_each_weight_moves_as_far() -> None:
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = Signs().make([{"params": [weight]}], TrainConfig(lr=0.5))
    weight.grad = torch.tensor([[3.0, -0.1], [0.0, 1.0]])
    optimizer.step()
    assert weight.tolist() == [[-0.5, 0.5], [0.0, -0.5]]
