"""Images in the ids of agents' calls. Invariant: equal ids are equal texts with equal images.

In the context of a call each part of image `n` is the id `-1 - n`, of a table of hashes: that of
the message for a lease or a sample, that of the episode in the state. So contexts that differ in an
image alone differ in their ids, the tree of calls shares an image whole, and a placeholder that the
model sampled is a token like any other.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence

HASH = re.compile(r"[0-9a-f]{64}")
"""The name of an image: a sha256."""


def numbered_alone(ids: bytes, table: Sequence[str]) -> tuple[bytes, tuple[str, ...]]:
    """The ids (`int32`) with their images numbered by first appearance, and these images. Raises
    ValueError for an image that is not in the table.

    >>> ids, images = numbered_alone(array("i", [7, -2, -2, 8, -1]).tobytes(), ["a", "b", "c"])
    >>> array("i", ids).tolist(), images
    ([7, -1, -1, 8, -2], ('b', 'a'))
    """
    numbers = array("i", ids)
    if min(numbers, default=0) >= 0:
        return ids, ()
    places = dict[int, int]()
    for at, one in enumerate(numbers):
        if one < 0:
            if -1 - one >= len(table):
                raise ValueError(f"ids have image {-1 - one}, and there are {len(table)}")
            numbers[at] = -1 - places.setdefault(-1 - one, len(places))
    return numbers.tobytes(), tuple(table[number] for number in places)


def numbered_by(ids: bytes, images: Sequence[str], table: Sequence[str]) -> bytes:
    """The ids (`int32`) of a table `images`, with these numbered by another that has them all.

    >>> array("i", numbered_by(array("i", [7, -1]).tobytes(), ["b"], ["a", "b"])).tolist()
    [7, -2]
    """
    if not images:
        return ids
    numbers, places = array("i", ids), [-1 - table.index(image) for image in images]
    for at, one in enumerate(numbers):
        if one < 0:
            numbers[at] = places[-1 - one]
    return numbers.tobytes()


def without_images(ids: bytes) -> bytes:
    """The ids (`int32`) of text alone.

    >>> array("i", without_images(array("i", [7, -1, 8]).tobytes())).tolist()
    [7, 8]
    """
    return array("i", [one for one in array("i", ids) if one >= 0]).tobytes()
