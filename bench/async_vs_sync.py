"""The same run without and with asynchrony: seconds a step, at equal batch, by the real
coordinator, actors and links in virtual time.

64 groups of 8 rollouts a step, of lognormal lengths (sigma = 1, mean 2,800 tokens, cut at 28,000).
A decode step of an engine takes 8 ms, or 0.1 ms for each busy slot where that is more; the trainer
takes 30 microseconds a token, and 1 s for the optimizer's step: about as long for a step as 4
engines that are kept busy.

    synchronous             engines and trainer by turns: `depth` and `max_lag` 0, and nothing is
                            trained before all is generated
    synchronous, colocated  the same where each side has the machines of both while its turn is:
                            twice the engines, a trainer twice as fast
    on policy, overlapped   `depth` and `max_lag` 0: groups are trained while others are generated
    asynchronous            `depth` 1 and 2, `max_lag` 8
"""

from __future__ import annotations

import time

from asyncrl.simulation.capacity.modelled import (
    GROUPS,
    MEMBERS,
    Measured,
    configured,
    lognormal,
    measure,
    roofline,
)
from asyncrl.simulation.fake_world import Speeds

MEAN, LONGEST = 2_800, 28_000
ENGINES, SLOTS = 4, 160
TRAINED_TOKEN_S, OPTIMIZER_S = 3e-5, 1.0
FIRST, LAST = 6, 26
AIM = 2.5


def run(depth: int, max_lag: int, *, overlap: bool = True, machines: int = 1) -> Measured:
    """Without `overlap` a step's tokens are trained once it has them all: so many as a step has on
    average."""
    config = configured(
        machines * ENGINES, SLOTS, LONGEST, staleness={"depth": depth, "max_lag": max_lag}
    )
    length, token_s = lognormal(1, MEAN, LONGEST), TRAINED_TOKEN_S / machines
    tokens = GROUPS * MEMBERS * sum(map(length, range(10_000))) / 10_000
    speeds = Speeds(
        verdict_s=1.0,
        trained_token_s=token_s if overlap else 0.0,
        step_s=OPTIMIZER_S + (0.0 if overlap else token_s * tokens),
    )
    return measure(config, length, roofline(8e-3, 1e-4), speeds, first=FIRST, last=LAST)


def main() -> None:
    began = time.process_time()
    print(
        f"{'':<24}{'s/step':>8}{'as fast':>9}{'trainer idle':>14}{'masked':>8}{'head lag':>10}"
        f"{'largest':>9}"
    )
    synchronous = run(0, 0, overlap=False)

    def row(what: str, came: Measured) -> float:
        ratio = synchronous.step_s / came.step_s
        print(
            f"{what:<24}{came.step_s:>8.1f}{ratio:>9.2f}{came.idle:>14.1%}{came.masked:>8.1%}"
            f"{came.head_lag:>10.2f}{came.largest_lag:>9}",
            flush=True,
        )
        return ratio

    row("synchronous", synchronous)
    colocated = row("synchronous, colocated", run(0, 0, overlap=False, machines=2))
    row("on policy, overlapped", run(0, 0))
    row("asynchronous, depth 1", run(1, 8))
    ratio = row("asynchronous, depth 2", run(2, 8))
    print(f"\n{time.process_time() - began:.0f} s of this machine")
    print(
        f"asynchronous, depth 2, over synchronous: {ratio:.2f} (aim: at least {AIM}); over "
        f"synchronous, colocated: {ratio / colocated:.2f}"
    )


if __name__ == "__main__":
    main()
