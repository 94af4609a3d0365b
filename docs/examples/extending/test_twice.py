from twice import Twice

from asyncrl.algorithms.selection.curriculum import PromptOrder
from asyncrl.algorithms.selection.prompt_history import History


def test_each_prompt_comes_twice() -> None:
    curriculum, history = Twice(PromptOrder(size=3, seed=0, epochs=1)), History()
    chosen = []
    while (found := curriculum.next(history, live=set())) is not None:
        history.admit(found.prompt_index, found.cursor)
        chosen.append(found.prompt_index)
    assert chosen[::2] == chosen[1::2] and sorted(chosen[::2]) == [0, 1, 2]
