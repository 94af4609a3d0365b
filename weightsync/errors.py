"""What may go wrong on the wire. Invariant: no torch is needed to name it, so an actor without
torch can be told."""


class TransferError(Exception):
    """The transfer failed, and nothing of it counts; in one sentence."""
