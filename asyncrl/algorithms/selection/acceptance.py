"""End of a run whose filter leaves nearly nothing. Invariant: what is said follows from the groups
that finished, whatever became of them afterwards (`History.recent`).

How many groups start for those that are filtered is admission's (`asyncrl.staleness.admission`).
"""

from __future__ import annotations

from asyncrl.algorithms.selection.prompt_history import RECENT, with_signal


def below_floor(
    recent: bytes | bytearray, floor: float, patience: int, *, to_go: bool = False
) -> str:
    """Return why the run is not to go on: of the last `patience` (at least 1) groups in `recent` a
    share smaller than `floor` [0, 1) passed, or none did.

    Empty where that is not so, and before so many groups have finished. A `patience` over `RECENT`
    counts as that. With `to_go` a group passed where its rewards to go differ.

    Example: 3 of the last 512 passed, and a floor of 0.01 asks for 6: the run ends.
    """
    patience = min(patience, RECENT)
    lately = recent[-patience:]
    if len(lately) < patience:
        return ""
    passed = with_signal(lately, to_go)
    if passed and passed >= floor * patience:
        return ""
    return (
        f"of the last {patience} groups {passed or 'none'} had rewards that differ, and "
        f"rollout.accept_floor asks for {floor:.2%}: "
        "nearly all prompts are solved by every rollout, or by none"
    )
