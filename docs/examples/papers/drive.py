"""drive.py: the hardest are kept (DRIVE's second stage, arXiv 2511.06307).

The first stage is a run with groups of 8 over all prompts. The second goes on from its model
(`model.path`), with groups of 64 and this curriculum: after each epoch the hardest third of what
was kept goes on, by the solve rates so far, down to FEWEST prompts."""

from collections.abc import Container

from asyncrl.algorithms.selection.curriculum import NextPrompt, PromptOrder
from asyncrl.algorithms.selection.prompt_history import History

KEPT, FEWEST = 1 / 3, 8


class Hardest:
    """The prompts of the stream that are among the hardest of their epoch."""

    def __init__(self, stream: PromptOrder) -> None:
        self._stream = stream

    def next(self, history: History, live: Container[int]) -> NextPrompt | None:
        ranked = sorted(range(self._stream.size), key=lambda n: (self.solve_rate(history, n), n))
        place = history.cursor
        while not self._stream.over(place):
            kept = max(FEWEST, int(self._stream.size * KEPT ** (place // self._stream.size)))
            prompt = self._stream.prompt_index(place)
            if prompt in ranked[:kept]:
                return NextPrompt(prompt, place + 1)
            place += 1
        return None

    def solve_rate(self, history: History, prompt_index: int) -> float:
        a, b = history.posterior(prompt_index)
        return a / (a + b)
