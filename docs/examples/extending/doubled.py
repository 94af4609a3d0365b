"""doubled.py: twice as many rollouts of a prompt that its last group did not solve."""

from asyncrl.algorithms.selection.prompt_history import History


class Doubled:
    """`least`, or twice as many where no rollout has ever solved the prompt."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def size(self, history: History, prompt_index: int) -> int:
        seen = history.seen.get(prompt_index)
        hopeless = seen is not None and seen.visits > 0 and not seen.solved
        return min(self._most, 2 * self._least) if hopeless else self._least
