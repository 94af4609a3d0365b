"""End of a run whose filter leaves nearly nothing. Invariant: the decision depends only on finished
groups, whatever happens to them later (`History.recent`). Admission decides how many groups replace
filtered ones (`asyncrl.staleness.admission`).
"""

from __future__ import annotations

from asyncrl.algorithms.selection.prompt_history import RECENT, Signal, with_signal


def below_floor(
    recent: bytes | bytearray, floor: float, patience: int, *, signal: Signal = "rewards"
) -> str:
    """Return the reason to end the run: of the last `patience` (at least 1) groups in `recent` a
    share smaller than `floor` [0, 1) passed, or none did. Returns an empty text otherwise, and
    before that many groups have finished. `patience` is at most `RECENT`. A group passed where its
    rewards differ, or those of the `signal`.

    Example: 3 of the last 512 passed, and a floor of 0.01 requires 6: the run ends.
    """
    patience = min(patience, RECENT)
    lately = recent[-patience:]
    if len(lately) < patience:
        return ""
    passed = with_signal(lately, signal)
    if passed and passed >= floor * patience:
        return ""
    return (
        f"of the last {patience} groups {passed or 'none'} had rewards that differ, but "
        f"rollout.accept_floor requires {floor:.2%}: "
        "nearly all prompts are solved by every rollout, or by none"
    )
