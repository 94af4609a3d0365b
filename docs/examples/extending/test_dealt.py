import torch
from dealt import Dealt


def test_neighbours_are_apart() -> None:
    groups = torch.tensor([0, 0, 1, 2, 3, 4])
    assert Dealt().numbers(groups, 0 * groups, 4).tolist() == [0, 0, 1, 2, 3, 0]
