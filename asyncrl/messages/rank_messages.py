"""Messages between the ranks of a trainer. Rank 0's orders are the coordinator's commands to a
trainer (`MicroBatch`, `MeasureLoss`, `CloseStep`, `Save`, `Drain`) as they came, and `Gather`;
before them comes `Meet`."""

from __future__ import annotations

from asyncrl.messages.parts import Message, Part


class RankStand(Part, frozen=True):
    """Progress of a rank since its start: it has `entered` so many collectives, and is `inside` one
    or not; it waited `waited_s` seconds in them, and was given `work`. `machine` has it."""

    entered: int = 0
    inside: bool = False
    waited_s: float = 0.0
    work: float = 0.0
    machine: str = ""


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


class AtOrder(Message, frozen=True):
    """Rank to rank 0, about each second of an order: how far it is."""

    stand: RankStand


class Obeyed(Message, frozen=True):
    """Rank to rank 0: its `order`th order is carried out, counted from 0, in so many `seconds`."""

    order: int
    seconds: float = 0.0
    stand: RankStand = RankStand()
