"""A scripted agent is the seed's, and its attempt's where it is unsteady."""

from __future__ import annotations

from asyncrl.simulation.agent_script import ScriptedAsk, script


def test_a_steady_agent_does_the_same_again_and_an_unsteady_one_does_not() -> None:
    def first(seed: int, attempt: int, unsteady: bool) -> list[ScriptedAsk]:
        act = next(script(seed, attempt, unsteady=unsteady))
        assert isinstance(act, list)
        return [ask._replace(role="") for ask in act]  # the role is not the call's

    assert all(first(seed, 1, False) == first(seed, 2, False) for seed in range(20))
    assert any(first(seed, 1, True) != first(seed, 2, True) for seed in range(20))
