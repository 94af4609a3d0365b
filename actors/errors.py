"""Errors that end an actor from outside. Each names the process that was lost, so that the log of
the survivor says why it ended."""


class CoordinatorLost(ConnectionError):
    """The link to the coordinator ended before the coordinator drained this actor."""

    def __init__(self, actor: str) -> None:
        super().__init__(
            f"{actor} lost its coordinator before it was drained; see the coordinator's log for why"
        )


class RankLost(ConnectionError):
    """A rank of the trainer ended in the middle of the run."""

    def __init__(self, rank: int, order: str, machine: str = "") -> None:
        super().__init__(
            f"rank {rank} of the trainer was lost at its {order}"
            f"{f', on {machine}' if machine else ''}; see logs/trainer-{rank}.log for why"
        )
