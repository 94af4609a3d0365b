"""Hashes of tensors against SGLang's own kernel, and against the same in Python's integers."""

from __future__ import annotations

import json
import subprocess

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from real_sglang import PYTHON, START_S

from asyncrl.weightsync.servers import server_hashes
from asyncrl.weightsync.servers.server_hashes import hash_on, of_gpu, of_host

KERNEL = {
    0: "0000000000000000",
    1: "d7f1f4357db32352",
    2: "20a2e610ac5c053b",
    3: "191bdeb735cb4f3f",
    4: "d8097d9413bc9b31",
    5: "0476f43feca13847",
    31: "9001a47f42061672",
    32768: "636b2d513320d9ec",
    32769: "39bc791dae4809a4",
    40000: "26807acc4d85ab90",
    98306: "18d21aec9607465f",
}
"""Hashes that SGLang 0.5.23's kernel gave of `text_of`, by Triton's interpreter, by size."""
AGAIN = (5, 32769)
"""Those that it is asked for once more: the interpreter takes a second for each."""

OWN = """
import importlib.machinery, importlib.util, json, sys
import torch
class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, name):
        return compile(self.get_data(self.path), self.path, "exec", optimize=1)
spec = importlib.util.spec_from_loader("kernel", Loader("kernel", sys.argv[1]))
kernel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
found = {}
for size in map(int, sys.argv[2:]):
    given = torch.Generator().manual_seed(size)
    text = torch.randint(0, 256, (size,), generator=given, dtype=torch.uint8)
    found[size] = f"{kernel.gpu_tensor_hash(text):016x}"
print(json.dumps(found))
"""


def text_of(size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8)


def mixed(x: int) -> int:
    x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
    x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
    return x ^ x >> 16


def reference(data: bytes) -> str:
    """The hash word by word, after the kernel's source."""
    data += bytes(-len(data) % 4)
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]
    if not words:
        return "0" * 16
    seed = 0x243F6A88
    total = 0
    for tile in range(0, len(words), 8192):
        halves = []
        for factor, start, turn in (
            (0x27D4EB2D, seed, 15),
            (0x165667B1, (seed * 0x9E3779B1 ^ 0xDEADBEEF) % 2**32, 13),
        ):
            sum_ = 0
            for index in range(tile, min(tile + 8192, len(words))):
                turned = (index << turn | index >> 32 - turn) % 2**32
                sum_ += mixed(words[index] ^ (index * factor + start) % 2**32 ^ turned)
            halves.append(mixed((sum_ % 2**32) ^ len(data)))
        total += halves[0] << 32 | halves[1]
    x = total % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return f"{x ^ x >> 31:016x}"


def test_what_sglangs_kernel_gave() -> None:
    for size, expected in KERNEL.items():
        text = text_of(size)
        assert of_gpu([text]) == expected == reference(text.numpy().tobytes())


@pytest.mark.explore
@pytest.mark.processes
@pytest.mark.timeout(START_S)
def test_sglangs_kernel_gives_that_still() -> None:
    """Without its assertions it takes tensors that are not on a GPU, and Triton interprets it. Only
    this file is compiled so: torch without assertions would be compiled first."""
    if not PYTHON.exists():
        pytest.skip("there is no .venv-sglang")
    (packages,) = (PYTHON.parents[1] / "lib").glob("python*/site-packages")
    kernel = packages / "sglang/kernels/ops/memory/gpu_tensor_hash.py"
    ran = subprocess.run(
        [PYTHON, "-c", OWN, kernel, *map(str, AGAIN)],
        env={"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
    )
    assert json.loads(ran.stdout) == {str(size): KERNEL[size] for size in AGAIN}


@settings(max_examples=30, deadline=None)
@given(
    st.binary(max_size=70_000),
    st.lists(st.integers(0, 70_000), max_size=3),
    st.sampled_from([1, 2, 16]),
)
def test_pieces_and_chunks_of_any_size(data: bytes, cuts: list[int], tiles: int) -> None:
    whole = torch.frombuffer(bytearray(data + b"."), dtype=torch.uint8)[:-1]
    pieces = whole.tensor_split(sorted(min(cut, len(data)) for cut in cuts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_hashes, "CHUNK", tiles * server_hashes.TILE)
        assert of_gpu(list(pieces)) == reference(data)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int8])
def test_a_tensor_of_any_type_and_stride_is_its_bytes_row_by_row(dtype: torch.dtype) -> None:
    tensor = torch.arange(15).view(3, 5).to(dtype)
    plain = tensor[:, 1:4].contiguous().view(torch.uint8).numpy().tobytes()
    assert of_gpu([tensor[:, 1:4]]) == reference(plain)
    assert of_gpu([torch.tensor(1, dtype=dtype)]) == reference(
        torch.tensor([1], dtype=dtype).view(torch.uint8).numpy().tobytes()
    )


def test_a_server_hashes_as_its_device_has_it() -> None:
    assert hash_on("cuda") is hash_on("cuda:1") is of_gpu
    assert hash_on("cpu") is hash_on("") is hash_on("npu") is of_host


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_it_is_the_same() -> None:
    for size, expected in KERNEL.items():
        assert of_gpu([text_of(size).cuda()]) == expected
