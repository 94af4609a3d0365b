"""The branches of an episode, by its calls. Invariant: whole texts are compared, with nothing that
the product makes of them."""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.simulation.checker.reference_rollouts import ReferenceAgentCall

Tree = Sequence[Sequence[int]]
"""For each turn the numbers of those directly above it."""


def above_of(calls: Sequence[ReferenceAgentCall]) -> list[list[int]]:
    """The calls above each call: the longest reply that its context begins with, and each later
    reply that its context may have come back from in other tokens. A context that begins with no
    reply is that of an earlier call, or comes after everything."""
    tree = list[list[int]]()
    for number, call in enumerate(calls):
        context = call.context
        at = {n: len(calls[n].path) for n in range(number) if context.startswith(calls[n].path)}
        same = [n for n in range(number) if calls[n].context == context]
        under = [sum(n in over for over in tree) for n in range(number)]
        longest = max(at.values(), default=0)
        if at:
            first = min((n for n in at if at[n] == longest), key=lambda n: (under[n], n))
            over = {first}
        elif same:
            over = set(tree[same[0]])
        else:
            tree.append([n for n in range(number) if not under[n]])
            continue
        for n in range(number):
            asked = calls[n].context
            if longest <= len(asked) < len(context) and context.startswith(asked):
                over.add(n)
        tree.append(sorted(over))
    return tree


def ends_of(calls: Sequence[ReferenceAgentCall]) -> list[ReferenceAgentCall]:
    """The calls with nothing below them."""
    inner = {n for over in above_of(calls) for n in over}
    return [call for n, call in enumerate(calls) if n not in inner]


def same_tree(found: Tree, due: Tree) -> bool:
    """True if a tree is told as it is: one in which each turn lies below the one before it is told
    by nothing."""
    in_a_row = [[n - 1] * (n > 0) for n in range(len(due))]
    return [list(over) for over in found or in_a_row] == [list(over) for over in due]
