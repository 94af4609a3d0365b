"""The hashes that a server gives of its tensors. Invariant: equal to SGLang's own, bit by bit.

SGLang 0.5.23 (`srt/managers/mm_utils.py: tensor_hash`) hashes what is on a GPU by a Triton kernel
(`kernels/ops/memory/gpu_tensor_hash.py`), and everything else by SHA-256, of which it gives the
first 64 bits. Both are of a tensor's bytes, row by row, whatever its type.

The kernel reads little-endian 32-bit words `w[i]`, the last filled up with zero bytes. For each of
two keys `(A, S, r)` and each tile of 8,192 words

    h = mix(n ^ sum of mix(w[i] ^ (i A + S) ^ rotl(i, r)))   mod 2**32

where n is the tensor's bytes, filled up, and `mix` the finalizer of MurmurHash3 (fmix32). The hash
is the sum mod 2**64 of the pairs (h of the first key above h of the second) of all tiles, mixed by
SplitMix64 (Steele et al. 2014). torch has no unsigned arithmetic: here it is int32, which wraps
around to the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Hash = Callable[["Sequence[Tensor]"], str]
"""The hash of tensors, one at least, whose bytes follow one another: 16 hexadecimal digits."""

TILE = 8192
"""Words of a tile."""
CHUNK = 16 * TILE
"""Words that are hashed at a time by a core: so much stays in its caches."""
DEVICE_CHUNK = 2048 * TILE
"""The same on a GPU, where a step of less costs as much as this one."""

_SEED = 0x243F6A88
_KEYS = (
    (0x27D4EB2D, _SEED, 15),
    (0x165667B1, (_SEED * 0x9E3779B1 ^ 0xDEADBEEF) & 0xFFFFFFFF, 13),
)
_MIX_1, _MIX_2 = 0x85EBCA6B, 0xC2B2AE35
_MASK = (1 << 64) - 1


def hash_on(device: str) -> Hash:
    """The hash that a server on such a device gives (`ServerInfo.device`)."""
    return of_gpu if device.partition(":")[0] == "cuda" else of_host


def of_host(pieces: Sequence[Tensor]) -> str:
    """The hash of what is not on a GPU: in one thread."""
    hashed = hashlib.sha256()
    for piece in pieces:
        hashed.update(_bytes(piece).cpu().numpy().data)
    return hashed.hexdigest()[:16]


def of_gpu(pieces: Sequence[Tensor]) -> str:
    """The hash of what is on a GPU: in torch operations on the device of the first piece, in a few
    MB of memory beside the pieces (on a GPU some hundred)."""
    import torch

    count = -(-sum(piece.nbytes for piece in pieces) // 4)
    if not count:
        return f"{0:016x}"
    on_host = pieces[0].device.type == "cpu"
    most = CHUNK * torch.get_num_threads() if on_host else DEVICE_CHUNK
    size = min(most, count + -count % TILE)
    positions = torch.arange(size, dtype=torch.int32, device=pieces[0].device)
    mixed, scratch = torch.empty_like(positions), torch.empty_like(positions)
    sums = []
    for words in _chunks(pieces, 4 * size):
        sums.append(_tiles(words, positions, mixed, scratch))
        positions += size
    of_tile = torch.cat(sums, dim=1) ^ _signed(4 * count)
    _mix(of_tile, torch.empty_like(of_tile))
    high, low = of_tile.long()
    return f"{_split_mix(int(((high << 32) | (low & 0xFFFFFFFF)).sum()) & _MASK):016x}"


def _bytes(piece: Tensor) -> Tensor:
    import torch

    return piece.detach().contiguous().view(-1).view(torch.uint8)


def _chunks(pieces: Sequence[Tensor], size: int) -> Iterator[Tensor]:
    """The words of the pieces, int32, `size` bytes of them and at last what is left; each is there
    until the next one is asked for."""
    import torch

    buffer = torch.empty(size, dtype=torch.uint8, device=pieces[0].device)
    filled = 0
    for piece in pieces:
        rest = _bytes(piece)
        while len(rest):
            taken, rest = rest[: size - filled], rest[size - filled :]
            buffer[filled : filled + len(taken)] = taken
            filled += len(taken)
            if filled == size:
                yield buffer.view(torch.int32)
                filled = 0
    if filled:
        end = filled + -filled % 4
        buffer[filled:end] = 0
        yield buffer[:end].view(torch.int32)


def _tiles(words: Tensor, positions: Tensor, mixed: Tensor, scratch: Tensor) -> Tensor:
    """For each key and tile the sum of what its words are mixed to, int32 [2, tiles]. All are int32
    of one length, `words` may be shorter: the places of its words, and what is overwritten."""
    import torch

    count = len(words)
    positions, scratch, of_word = positions[:count], scratch[:count], mixed[:count]
    filled = mixed[: count + -count % TILE]
    filled[count:] = 0
    sums = []
    for factor, seed, turn in _KEYS:
        torch.mul(positions, _signed(factor), out=of_word)
        of_word += _signed(seed)
        of_word ^= torch.bitwise_left_shift(positions, turn, out=scratch)
        # places are below 2**31 (a tensor of 8 GiB), so that this shift fills with zeros
        of_word ^= torch.bitwise_right_shift(positions, 32 - turn, out=scratch)
        of_word ^= words
        _mix(of_word, scratch)
        sums.append(filled.view(-1, TILE).sum(1).to(torch.int32))
    return torch.stack(sums)


def _mix(x: Tensor, scratch: Tensor) -> None:
    """Mix int32 `x` in place, by way of `scratch` of its shape."""
    import torch

    for shift, factor in ((16, _MIX_1), (13, _MIX_2), (16, 1)):
        torch.bitwise_right_shift(x, shift, out=scratch)
        scratch &= (1 << (32 - shift)) - 1  # that shift repeats the sign
        x ^= scratch
        x *= _signed(factor)


def _split_mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def _signed(word: int) -> int:
    """The int32 with the bits of a word, mod 2**32.

    >>> _signed(2**32 - 1), _signed(2**32 + 5)
    (-1, 5)
    """
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word
