"""The error of a transfer. No torch is needed to name it, so an actor without torch can be told."""


class TransferError(Exception):
    """The transfer failed, and nothing of it counts; in one sentence."""
