"""Steps in virtual time where prompts go first to the machines that suit them (RollArt), over any.

Real coordinators, actors and links (`ScriptedWorld` of the tests), two machines: one reads prompts
6.7 times as fast (as an H800 over an H20, by their FLOPs), the other decodes 1.19 times as fast (by
their bandwidth). Half of the prompts are long with short answers, half short with long answers.

    python bench/tags.py [--steps 24]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import trio
from trio.testing import MockClock

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))
from scripted_parts import VOCABULARY
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.prompts import PromptSource
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script, ScriptedEngine
from asyncrl.explain.run_status import TagCounts
from asyncrl.simulation.sim_process import SimProcess
from asyncrl.tasks.mixed import parts_of

TAGS = ("long_prefill", "long_decode")
PROMPTS = 500
PROMPT_TOKENS = {"read": 400, "write": 25}
ANSWER_TOKENS = {"read": 10, "write": 200}
PREFILL_S, DECODE_S = (0.0010, 0.0067), (0.0119, 0.0100)
"""Seconds a token of a prompt and of an answer, of each machine; each token stands for 20."""


class Course(NamedTuple):
    """The virtual seconds of a run, and where leases went, by tag."""

    seconds: float
    leases: dict[str, TagCounts]


class TaggedWorld(ScriptedWorld):
    """Two rollout actors, each on a machine of another kind, and two tasks."""

    def __init__(self, tagged: bool, steps: int, **sections: dict[str, Any]) -> None:
        kinds = dict(zip(PROMPT_TOKENS, TAGS, strict=True))
        mix = {label: {"prefers": tag} if tagged else {} for label, tag in kinds.items()}
        task = {"eval_size": 0, "train_size": PROMPTS, "mix": mix}
        settings: dict[str, dict[str, Any]] = {
            "task": task | {"weights": dict.fromkeys(kinds, 0.5)},
            "rollout": {
                "actors": 2,
                "needs": TAGS if tagged else (),
                "group_size": 4,
                "max_new_tokens": 256,
                "filter": "none",
            },
            "engine": {"slots": 16, "context_tokens": 1024},
            "train": {"steps": steps, "batch_groups": 8, "eval_every": 0},
            "staleness": {"max_lag": 4, "depth": 1},
        }
        for name, values in sections.items():
            settings[name] = settings.get(name, {}) | values
        super().__init__(configured(**settings))
        self.source._sizes = {"train": 2 * PROMPTS, "evaluation": 0}
        lengths = [*PROMPT_TOKENS.values()]
        self.source.prompts = lambda split, index: "x" * lengths[index // PROMPTS]

    def prompts(self) -> PromptSource:
        parts = parts_of(self.config.task, lambda label, split: PROMPTS if split == "train" else 0)
        return PromptSource(self.source, self.source, seed=0, epochs=0, parts=parts)

    def make_engine(self, process: SimProcess) -> Any:
        def script(request: Request) -> Script:
            label = (
                "read"
                if len(request.ids) - request.prefix_tokens == PROMPT_TOKENS["read"]
                else "write"
            )
            left = ANSWER_TOKENS[label] - request.prefix_tokens
            reading_s = PREFILL_S[process.index] * (PROMPT_TOKENS[label] + request.prefix_tokens)
            ids = np.full(left, 5, np.int32)
            each_s = DECODE_S[process.index] + reading_s / left
            return Script(ids, np.full(left, -1.0, np.float32), each_s, "stop")

        return ScriptedEngine(
            script,
            EngineOptions.of(self.config),
            vocab_size=VOCABULARY,
            idle=process.waits.idle_for,
        )


async def run(tagged: bool, steps: int) -> Course:
    """A run of so many steps to its end."""
    world = TaggedWorld(tagged, steps)
    outcome = await world.run()
    world.check()
    assert outcome.ok, outcome.reason
    return Course(world.seconds, dict(world.coordinator.parts.placement.preferences.counts))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=24)
    steps = parser.parse_args().steps
    untagged, tagged = (
        trio.run(run, preferring, steps, clock=MockClock(autojump_threshold=0))
        for preferring in (False, True)
    )
    for tag, leases in tagged.leases.items():
        print(f"{tag}: {leases.there} of {leases.there + leases.elsewhere} leases there")
    print(f"any machine over those preferred: {untagged.seconds / tagged.seconds:.2f}")


if __name__ == "__main__":
    main()
