"""The checksum of a bucket. Invariant: equal bytes give equal checksums on every device, whether
they were added whole or in pieces, and a changed word, or two different words in each other's
places, always change the sums that it is a hash of.

The bucket is read as little-endian unsigned 64-bit words `w[r, i]` in rows of 4,096 (the last is
filled up with zeros). Its sums, mod 2**64, are

    of each row r         sum over i of w[r, i]
    of each column i      sum over r of w[r, i]

and the checksum is the first 64 bits of BLAKE2b of all of them, rows first. Why that is enough: a
changed word changes the sum of its row. Two different words that trade places change the sums of
their columns, or of their rows where they stand in one column. It is no defence against a forger.
Additions cost a processor half of what products do: 9 GB/s a thread. Here numpy adds, in one
thread; on other devices torch does, and only sums are copied to the host.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

COLUMNS = 4096
_WORD = 8
_BLOCK = 16
"""Rows that are added at a time: 512 KB, which stay in a core's cache for the second addition."""


def checksum(bucket: Tensor) -> int:
    """The checksum of a contiguous uint8 tensor `[n]`: 0 to 2**64 - 1. Buckets of different length
    are not to be compared. Raises ValueError for any other tensor."""
    sums = BucketSums(bucket.numel())
    sums.add(0, bucket)
    return sums.checksum


class BucketSums:
    """The sums of a bucket of `size` bytes, whose pieces are added in any order; bytes that are
    not added are zero."""

    def __init__(self, size: int) -> None:
        words = -(-size // _WORD)
        self._rows = np.zeros(-(-words // COLUMNS), np.uint64)
        self._columns = np.zeros(min(words, COLUMNS), np.uint64)

    def add(self, start: int, piece: Tensor) -> None:
        """Add a piece, uint8 `[n]` and contiguous, that begins at byte `start`, a multiple of 8.
        Raises ValueError for any other."""
        if piece.dtype != torch.uint8 or piece.dim() != 1 or start % _WORD:
            raise ValueError(
                "a piece of a bucket is uint8 [n] and begins at a multiple of 8; this is "
                f"{piece.dtype} {list(piece.shape)} at {start}"
            )
        whole = piece.numel() // _WORD * _WORD
        if piece.device.type == "cpu":
            self._add(start // _WORD, piece[:whole].numpy().view("<u8"))
        elif whole:
            self._add_on_device(start // _WORD, piece[:whole].view(torch.int64))
        if whole < piece.numel():
            last = np.zeros(_WORD, np.uint8)
            last[: piece.numel() - whole] = piece[whole:].cpu().numpy()
            self._add((start + whole) // _WORD, last.view("<u8"))

    @property
    def checksum(self) -> int:
        """The checksum of what was added."""
        hashed = hashlib.blake2b(self._rows.astype("<u8").tobytes(), digest_size=8)
        hashed.update(self._columns.astype("<u8").tobytes())
        return int.from_bytes(hashed.digest(), "little")

    def _add(self, first: int, words: NDArray[np.uint64]) -> None:
        """Add words of which the first is number `first`."""
        row, column = divmod(first, COLUMNS)
        if column or 0 < len(words) < COLUMNS:  # up to the end of a row
            part, words = np.split(words, [min(COLUMNS - column, len(words))])
            self._rows[row : row + 1] += np.add.reduce(part, keepdims=True)
            self._columns[column : column + len(part)] += part
            row, column = row + 1, 0
        full = len(words) // COLUMNS
        for at in range(0, full, _BLOCK):
            end = min(at + _BLOCK, full)
            block = words[at * COLUMNS : end * COLUMNS].reshape(-1, COLUMNS)
            self._rows[row + at : row + end] += np.add.reduce(block, 1)
            self._columns += np.add.reduce(block, 0)
        if len(words) > full * COLUMNS:
            self._add((row + full) * COLUMNS, words[full * COLUMNS :])

    def _add_on_device(self, first: int, words: Tensor) -> None:
        """The same in torch operations: the words before and after whole rows, and these."""
        to_row = min(-first % COLUMNS, words.numel())
        end = to_row + (words.numel() - to_row) // COLUMNS * COLUMNS
        for part, at in ((words[:to_row], first), (words[end:], first + end)):
            if part.numel():
                row, column = divmod(at, COLUMNS)
                self._rows[row : row + 1] += _unsigned(part.sum(0, keepdim=True))
                self._columns[column : column + part.numel()] += _unsigned(part)
        if end > to_row:
            block, row = words[to_row:end].view(-1, COLUMNS), (first + to_row) // COLUMNS
            self._rows[row : row + len(block)] += _unsigned(block.sum(1))
            self._columns += _unsigned(block.sum(0))


def _unsigned(sums: Tensor) -> NDArray[np.uint64]:
    return sums.cpu().numpy().view(np.uint64)
