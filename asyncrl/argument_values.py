"""Values of the command line's options, from their texts."""

from __future__ import annotations

import argparse
import re

from asyncrl.words import whole


def _cut(text: str) -> str:
    """A text for a sentence: thousands of digits would hide the rest."""
    return text if len(text) <= 40 else f"{text[:37]}..."


def port(text: str) -> int:
    """A port, or 0. Raises argparse.ArgumentTypeError."""
    number = whole(text)
    if number is None or number > 65535:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is no port, from 0 to 65535")
    return number


def seeds(text: str) -> range:
    start, _, stop = text.partition(":")
    first, end = whole(start), whole(stop)
    if first is None or end is None or first >= end:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not A:B with numbers A < B")
    return range(first, end)


def seed(text: str) -> int:
    if (number := whole(text)) is None:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not the number of a seed")
    return number


def positive(text: str) -> int:
    if not (number := whole(text)):
        raise argparse.ArgumentTypeError(
            f"{_cut(text)!r} is not a whole number of at least 1, in at most eighteen digits"
        )
    return number


def tag(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", text):
        raise argparse.ArgumentTypeError(
            f"{_cut(text)!r} is no tag, which has 1 to 32 letters, digits, - and _"
        )
    return text


def more_than_0(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not a number above 0 and below 1e9")
    return number


def numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{_cut(text)!r} is not a list of numbers with commas, such as 0.7,0.3"
        ) from None


def index(text: str) -> int:
    if (number := whole(text)) is None:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not a whole number from 0")
    return number


def share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not a number from 0 to 1")
    return share
