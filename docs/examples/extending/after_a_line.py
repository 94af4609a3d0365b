"""after_a_line.py: responses fork where a line ends."""

from asyncrl.algorithms.selection.fork import ForkPoint

NEWLINE = 198  # of your tokenizer


class AfterALine:
    """A rollout forks behind each end of a line, as long as it has leaves to give."""

    def __init__(self, every: int) -> None: ...

    def forks(self, point: ForkPoint) -> bool:
        return point.ids[-1] == NEWLINE
