"""Merged weights are the linear combination of all parts, whatever the types, the files and the
pieces in which they are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from asyncrl.training import merged_weights
from asyncrl.training.merged_weights import MergeError, Parent, layout, write_merged

TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def model(folder: Path, tensors: dict[str, torch.Tensor], shards: int = 1) -> Path:
    """A directory with the weights in so many files."""
    folder.mkdir(parents=True)
    names = sorted(tensors)
    for shard in range(shards):
        of_shard = {name: tensors[name] for name in names[shard::shards]}
        name = f"model-{shard + 1:05}-of-{shards:05}" if shards > 1 else "model"
        save_file(of_shard, folder / f"{name}.safetensors", {"format": "pt"})
    return folder


def merged(folder: Path, *parts: tuple[Path, float]) -> dict[str, torch.Tensor]:
    folder.mkdir()
    write_merged(layout([Parent(*part) for part in parts]), folder)
    return {
        name: tensor
        for file in folder.glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**31), shards=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_a_merge_is_the_sum_in_float64_rounded_once(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    shards: tuple[int, int],
) -> None:
    monkeypatch.setattr(merged_weights, "NUMBERS", 5)
    drawn, folder = torch.Generator().manual_seed(seed), tmp_path_factory.mktemp("merge")

    def weights() -> dict[str, torch.Tensor]:
        return {
            f"layer.{number}": torch.randn(3, 4 + number, generator=drawn).to(
                TYPES[int(torch.randint(4, (), generator=drawn))]
            )
            for number in range(4)
        } | {"positions": torch.arange(7)}

    one, two = weights(), weights()
    found = merged(
        folder / "out",
        (model(folder / "one", one, shards[0]), -0.5),
        (model(folder / "two", two, shards[1]), 1.5),
    )
    assert found.keys() == one.keys()
    assert torch.equal(found["positions"], one["positions"])
    for name in set(one) - {"positions"}:
        expected = (1.5 * two[name].double() - 0.5 * one[name].double()).to(one[name].dtype)
        assert found[name].dtype == one[name].dtype
        assert torch.equal(found[name], expected)


def test_a_part_alone_is_itself_and_has_no_distance(tmp_path: Path) -> None:
    one = model(tmp_path / "one", {"w": torch.randn(40), "b": torch.ones(3)})
    two = model(tmp_path / "two", {"w": torch.randn(40), "b": torch.ones(3)})
    (tmp_path / "out").mkdir()
    apart = write_merged(layout([Parent(one, 1.0), Parent(two, 0.0)]), tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").stat().st_size
    first, other = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    written = load_file(tmp_path / "out/model.safetensors")
    assert all(torch.equal(first[name], written[name]) for name in first)
    length = (first["w"].double().square().sum() + 3).sqrt()
    distance = (first["w"].double() - other["w"].double()).square().sum().sqrt() / length
    assert apart == [0.0, pytest.approx(float(distance))]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"w": torch.ones(2)}, "has the weight b, and"),
        ({"w": torch.ones(2), "b": torch.ones(1), "c": torch.ones(1)}, "has the weight c, and"),
        ({"w": torch.ones(3), "b": torch.ones(1)}, "w is [2] in"),
        ({"w": torch.ones(2), "b": torch.ones(1, dtype=torch.int8)}, "type I8"),
        ({"w": torch.ones(2), "b": torch.ones(1).to(torch.float8_e4m3fn)}, "type F8_E4M3"),
    ],
)
def test_other_weights_are_refused(
    tmp_path: Path, other: dict[str, torch.Tensor], words: str
) -> None:
    one = model(tmp_path / "one", {"w": torch.ones(2), "b": torch.ones(1)})
    two = model(tmp_path / "two", other)
    for parts in ([Parent(one, 0.5), Parent(two, 0.5)], [Parent(two, 0.5), Parent(one, 0.5)]):
        with pytest.raises(MergeError) as caught:
            layout(parts)
        assert words.split(" is ")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("name", "one", "two", "words"),
    [
        ("w", torch.tensor([1.0]), torch.tensor([float("nan")]), "NaN or infinite"),
        ("w", torch.tensor([6e4]).half(), torch.tensor([6e4]).half(), "NaN or infinite"),
        ("ids", torch.tensor([1, 2]), torch.tensor([1, 3]), "differs in"),
    ],
)
def test_what_cannot_be_added_is_refused(
    tmp_path: Path, name: str, one: torch.Tensor, two: torch.Tensor, words: str
) -> None:
    parts = [
        Parent(model(tmp_path / "one", {name: one}), 1.0),
        Parent(model(tmp_path / "two", {name: two}), 1.0),
    ]
    (tmp_path / "out").mkdir()
    with pytest.raises(MergeError, match=words):
        write_merged(layout(parts), tmp_path / "out")


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    one = model(tmp_path / "one", {"w": torch.ones(2)})
    (tmp_path / "two").mkdir()
    (tmp_path / "two/model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(MergeError, match="cannot be read"):
        layout([Parent(one, 0.5), Parent(tmp_path / "two", 0.5)])
