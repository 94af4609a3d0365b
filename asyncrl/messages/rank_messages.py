"""Messages between the ranks of a trainer. Rank 0's orders are the coordinator's commands to a
trainer (`MicroBatch`, `MeasureLoss`, `CloseStep`, `Save`, `Drain`) as they came, and `Gather`;
before them comes `Meet`."""

from __future__ import annotations

from asyncrl.messages.parts import Message


class Meet(Message, frozen=True):
    """Rank 0 to another, first of all: the address of the `store` in which all ranks meet, and
    their number, `size`."""

    store: str
    size: int


class Gather(Message, frozen=True):
    """Rank 0 to another: help gather what a publication of the model as it is sends, or of the
    `average` of its weights: its tensors from `first` up to `end`, not included."""

    average: bool = False
    first: int = 0
    end: int = 2**31


class Score(Message, frozen=True):
    """Rank 0 to another: help score the text of the canary, whose ids are the only buffer (int32),
    with the weights that engines are sent."""


class Obeyed(Message, frozen=True):
    """Rank to rank 0: its `order`th order is carried out, counted from 0."""

    order: int
