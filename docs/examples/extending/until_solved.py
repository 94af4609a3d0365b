"""until_solved.py: twice as many rollouts, until one solves the prompt."""

from asyncrl.algorithms.selection.growth import GrowingGroup
from asyncrl.algorithms.selection.prompt_history import History


class UntilSolved:
    """`least`, doubled while no member is right."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def size(self, history: History, prompt_index: int) -> int:
        return self._least

    def grow(self, group: GrowingGroup) -> int:
        return group.size if group.solved else min(2 * group.size, self._most)
