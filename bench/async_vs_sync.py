"""The same run without and with asynchrony: seconds a step, at equal batch, by the real
coordinator, actors and links in virtual time.

64 groups of 8 rollouts a step, of lognormal lengths (sigma = 1). A decode step of an engine takes 6
ms and 0.22 ms for each busy slot; prompts are read for nothing. The trainer takes 1 s for the
optimizer's step, and as long for a token as the engines together when all their slots are busy:
both sides are worth their machines.

    AReaL, mean 8,000    cut at 27,000 tokens, 4 engines of 160 slots: the headline. AReaL measures
                         2.77 (1.5B) and 2.27 (7B) over synchronous, VCPO 2.5, PipelineRL about 2
    AReaL, mean 2,800    cut at 28,000: a longer tail
    short, queued        mean 300, cut at 1,024, 4 engines of 16 slots: an eighth of a step decodes
                         at a time, as where short answers are many (Periodic Asynchrony: about 2)
    flat engine          mean 2,800; a decode step takes 8 ms up to 80 slots, then 0.1 ms for each

    synchronous             engines and trainer by turns: `depth` and `max_lag` 0, and nothing is
                            trained before all is generated
    synchronous, colocated  the same where each side has the machines of both while its turn is:
                            twice the engines, a trainer twice as fast
    on policy, overlapped   `depth` and `max_lag` 0: groups are trained while others are generated
    asynchronous            `depth` 1 and 2, `max_lag` 8
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

from asyncrl.sizing.cluster_models import ClusterModel, EngineModel, LengthModel, TrainerModel
from asyncrl.sizing.meter import Measured
from asyncrl.sizing.modelled import GROUPS, MEMBERS, configured, measure

ENGINES, OPTIMIZER_S = 4, 1.0
FIRST, LAST = 6, 26
ADDITIVE = EngineModel.additive(6e-3, 2.2e-4)


class Setting(NamedTuple):
    """Lengths in tokens, and an engine."""

    name: str
    mean: int
    longest: int
    slots: int
    engine: EngineModel

    @property
    def trained_token_s(self) -> float:
        """Seconds that the engines take for a token when every slot is busy, and so the trainer."""
        return self.engine.decode_s(self.slots) / (ENGINES * self.slots)


SETTINGS = (
    Setting("AReaL, mean 8,000", 8_000, 27_000, 160, ADDITIVE),
    Setting("AReaL, mean 2,800", 2_800, 28_000, 160, ADDITIVE),
    Setting("short, queued", 300, 1_024, 16, ADDITIVE),
    Setting("flat engine", 2_800, 28_000, 160, EngineModel.roofline(8e-3, 1e-4)),
)


def run(
    setting: Setting, depth: int, max_lag: int, *, overlap: bool = True, machines: int = 1
) -> Measured:
    """Without `overlap` a step's tokens are trained once it has them all: so many as a step has on
    average."""
    config = configured(
        machines * ENGINES,
        setting.slots,
        setting.longest,
        staleness={"depth": depth, "max_lag": max_lag},
        run={"seed": 1},
    )
    lengths = LengthModel(mean=setting.mean)
    length = lengths.drawn(1, setting.longest)
    token_s = setting.trained_token_s / machines
    tokens = GROUPS * MEMBERS * sum(map(length, range(10_000))) / 10_000
    trainer = TrainerModel(
        token_us=1e6 * token_s if overlap else 0.0,
        step_s=OPTIMIZER_S + (0.0 if overlap else token_s * tokens),
    )
    models = ClusterModel(engine=setting.engine, length=lengths, trainer=trainer)
    return measure(config, models, first=FIRST, last=LAST)


def compare(setting: Setting) -> None:
    """Print a line for each way to run it."""
    print(
        f"\n{setting.name:<24}{'s/step':>8}{'as fast':>9}{'colocated':>11}{'trainer idle':>14}"
        f"{'masked':>8}{'head lag':>10}{'largest':>9}"
    )
    synchronous = run(setting, 0, 0, overlap=False)
    colocated = run(setting, 0, 0, overlap=False, machines=2)

    def row(what: str, came: Measured) -> None:
        print(
            f"{what:<24}{came.step_s:>8.1f}{synchronous.step_s / came.step_s:>9.2f}"
            f"{colocated.step_s / came.step_s:>11.2f}{came.idle:>14.1%}{came.masked:>8.1%}"
            f"{came.head_lag:>10.2f}{came.largest_lag:>9}",
            flush=True,
        )

    row("synchronous", synchronous)
    row("synchronous, colocated", colocated)
    row("on policy, overlapped", run(setting, 0, 0))
    for depth in (1, 2):
        row(f"asynchronous, depth {depth}", run(setting, depth, 8))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="run the settings whose names contain this")
    args = parser.parse_args()
    began = time.process_time()
    for setting in SETTINGS:
        if args.only in setting.name:
            compare(setting)
    print(
        f"\nas fast: as the synchronous run; colocated: as one that has both sides' machines\n"
        f"{time.process_time() - began:.0f} s of this machine"
    )


if __name__ == "__main__":
    main()
