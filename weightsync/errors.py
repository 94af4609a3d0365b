"""The error of a transfer. It needs no torch, so that actors without torch can use it."""


class TransferError(Exception):
    """Raised for a failed transfer, of which nothing counts; one sentence."""
