"""d3s.py: of a whole step, the rollouts whose advantages vary most are trained (D3S).

The advantages are GRPO's. Of all rollouts of a step, whatever their groups, `SHARE` is trained: the
largest and the smallest advantages, as many of each as make the variance largest. That prefers
right answers to hard prompts and wrong ones to easy prompts. The choice of tokens is a correction:

    [train]
    advantage = "./d3s.py:D3s"
    [staleness]
    correction = [{ kind = "abs_advantage_entropy" }]

The paper lowers both shares during a run; its constants are not published, and here they stay."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from asyncrl.algorithms.advantages import MemberAdvantage
from asyncrl.algorithms.advantages.normalization import normalized

SHARE = 0.5


class D3s(MemberAdvantage):
    """GRPO's advantages; None for those that are not chosen."""

    whole_step = True
    needs_member = True

    def of_members(
        self,
        rewards: Mapping[int, Sequence[float]],
        parts: Mapping[int, Sequence[Sequence[float]]],
        lengths: Mapping[int, Sequence[int]],
    ) -> dict[int, list[float | None]]:
        table = {group: normalized(members) for group, members in rewards.items()}
        order = sorted((value, group, n) for group in table for n, value in enumerate(table[group]))
        count = max(2, round(SHARE * len(order)))
        best = most_varied([value for value, _, _ in order], count)
        chosen = {(group, n) for _, group, n in order[: count - best] + order[len(order) - best :]}
        return {
            group: [value if (group, n) in chosen else None for n, value in enumerate(values)]
            for group, values in table.items()
        }


def most_varied(ordered: Sequence[float], count: int) -> int:
    """The number of last values of `ordered` that vary most, together with as many first ones as
    make `count`."""
    sums = [0.0, *accumulate(ordered)]
    squares = [0.0, *accumulate(value * value for value in ordered)]

    def variance(best: int) -> float:
        total, square = (
            of[count - best] + of[-1] - of[len(ordered) - best] for of in (sums, squares)
        )
        return square - total * total / count

    return max(range(min(count, len(ordered)) + 1), key=variance)
