"""Weights that are NaN or infinite are found in files of each type, within a bound on what is
read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from asyncrl.config import ConfigError
from asyncrl.launch import weight_numbers
from asyncrl.launch.weight_numbers import check_numbers
from asyncrl.training import stored_weights

BAD = {
    "F64": (
        np.uint64,
        {0x7FF0 << 48: "infinite", 0xFFF0 << 48: "infinite", 0x7FF8 << 48: "NaN"},
    ),
    "F32": (np.uint32, {0x7F800000: "infinite", 0xFF800000: "infinite", 0xFFC00001: "NaN"}),
    "BF16": (np.uint16, {0x7F80: "infinite", 0xFF80: "infinite", 0x7FC0: "NaN"}),
    "F16": (np.uint16, {0x7C00: "infinite", 0xFC00: "infinite", 0x7C01: "NaN"}),
}
"""The bits of numbers that are not finite, by type."""
LARGEST = {
    "F64": 0x7FEF_FFFF_FFFF_FFFF,
    "F32": 0x7F7F_FFFF,
    "BF16": 0x7F7F,
    "F16": 0x7BFF,
}
"""The bits of each type's largest number."""


def write(path: Path, bits: np.ndarray, kind: str, name: str = "a.weight") -> None:
    entry = {"dtype": kind, "shape": [*bits.shape], "data_offsets": [0, bits.nbytes]}
    header = json.dumps({name: entry}).encode()
    header += b" " * (-len(header) % 8)
    size = len(header).to_bytes(8, "little")
    (path / "model.safetensors").write_bytes(size + header + bits.tobytes())


@pytest.mark.parametrize("kind", BAD)
def test_each_kind_of_number_is_found_wherever_it_is(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of 64 bytes: the first and last number of each, and the last of all."""
    monkeypatch.setattr(stored_weights, "PIECE", 64)
    unsigned, bad = BAD[kind]
    bits = np.full(67, LARGEST[kind], unsigned)
    write(tmp_path, bits, kind)
    assert check_numbers("model.path", tmp_path) == []
    for pattern, word in bad.items():
        for index in (0, 7, 8, 31, 32, 63, 66):
            (other := bits.copy())[index] = pattern
            write(tmp_path, other, kind)
            with pytest.raises(
                ConfigError,
                match=rf"^model\.path is '{tmp_path}', and its weights are not all finite: of "
                rf"a\.weight in model\.safetensors, number {index} of it is {word}; download ",
            ):
                check_numbers("model.path", tmp_path)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("F8_E4M3", "model.layers.0.self_attn.q_proj.weight"),
        ("F8_E8M0", "model.layers.0.mlp.experts.down_proj"),
        ("I32", "model.layers.0.self_attn.q_proj.qweight"),
        ("BF16", "model.layers.0.self_attn.q_proj.weight_scale_inv"),
        ("F32", "model.layers.0.self_attn.q_proj.weight_scale"),
        ("U8", "model.layers.0.mlp.experts.gate_up_proj_blocks"),
    ],
)
def test_quantized_weights_are_refused_whatever_config_says(
    kind: str, name: str, tmp_path: Path
) -> None:
    """Without their scales they would be numbers of another model."""
    unsigned = {"F8_E4M3": np.uint8, "F8_E8M0": np.uint8, "U8": np.uint8, "BF16": np.uint16}
    write(tmp_path, np.zeros(8, unsigned.get(kind, np.uint32)), kind, name)
    said = rf"{re.escape(name)} in model\.safetensors is quantized, though config\.json has no"
    with pytest.raises(ConfigError, match=said):
        check_numbers("model.path", tmp_path)


def test_masks_integers_and_what_cannot_be_read_are_left_alone(tmp_path: Path) -> None:
    tensors = {
        "h.0.masked_bias": np.array(-np.inf, np.float16),
        "h.0.bias": np.full(8, 255, np.uint8),
        "h.0.empty": np.zeros((0, 4), np.float32),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "model-2.safetensors").write_bytes(b"x")
    assert check_numbers("model.path", tmp_path) == []


@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=40), most=st.integers(600, 9000))
def test_no_more_is_read_than_the_bound_and_of_each_weight_some(
    sizes: list[int], most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("m")
    save_file(
        {f"w{number}": np.ones(size, np.float32) for number, size in enumerate(sizes)},
        folder / "model.safetensors",
    )
    read = list[tuple[str, int]]()
    true = stored_weights.StoredWeight.not_finite

    def noted(self: stored_weights.StoredWeight, at: int, of: int) -> str:
        assert at % 8 == 0 and 0 <= at < self.size
        read.append((self.name, min(of, self.size - at)))
        return true(self, at, of)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_numbers, "MOST", most)
        patch.setattr(stored_weights.StoredWeight, "not_finite", noted)
        notes = check_numbers("model.path", folder)
    total = 4 * sum(sizes)
    assert sum(size for _, size in read) <= most
    assert {name for name, _ in read} == {f"w{number}" for number in range(len(sizes))}
    assert bool(notes) == (sum(size for _, size in read) < total)


def test_a_large_model_is_looked_at_in_part_which_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight that is NaN as a whole is found there, too; and a slow disk ends it."""
    monkeypatch.setattr(weight_numbers, "MOST", 2**14)
    weights = {name: np.ones(2**14, np.float32) for name in ("a", "b", "c")}
    save_file(weights, tmp_path / "model.safetensors")
    (note,) = check_numbers("model.path", tmp_path)
    assert note.value == "model.path" and note.meaning.startswith("of 192.0 KiB of weights ")
    save_file(weights | {"c": np.full(2**14, np.nan, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="of c in model"):
        check_numbers("model.path", tmp_path)
    monkeypatch.setattr(weight_numbers, "READ_S", 0.0)
    (note,) = check_numbers("model.path", tmp_path)
    assert " 2.7 KiB were checked" in note.meaning
