from doubled import Doubled

from asyncrl.algorithms.selection.prompt_history import History


def test_an_unsolved_prompt_gets_twice_as_many() -> None:
    history = History()
    history.admit(3, cursor=1)
    assert Doubled(8, 16).size(history, 3) == 8
    history.record(3, rewards=[0.0] * 8, size=8)
    assert Doubled(8, 16).size(history, 3) == 16
