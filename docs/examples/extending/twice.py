"""twice.py: each prompt two times in a row."""

from collections.abc import Container

from asyncrl.algorithms.selection.curriculum import NextPrompt, PromptOrder
from asyncrl.algorithms.selection.prompt_history import History


class Twice:
    """Each place of the stream two times, so that an epoch takes two."""

    def __init__(self, stream: PromptOrder) -> None:
        self._stream = stream

    def next(self, history: History, live: Container[int]) -> NextPrompt | None:
        place = history.cursor // 2
        if self._stream.over(place):
            return None
        return NextPrompt(self._stream.prompt_index(place), history.cursor + 1)
