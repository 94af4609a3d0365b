"""Shapes of simulated runs: what a seed draws of settings, surroundings and faults.

Every other seed has a theme: a run at one of the edges of what settings allow, or among one kind of
trouble. Invariant: a shape is a function of the seed.
"""

from __future__ import annotations

import random

import msgspec

from asyncrl.config import Config
from asyncrl.simulation.drawn_settings import OF_EPISODES, OF_TURNS, drawn_settings
from asyncrl.simulation.fake_world import Speeds
from asyncrl.simulation.faults import crowded
from asyncrl.simulation.themes import OF_AGENTS, THEMES, Draft, Shape

PROMPT = 4
"""Tokens of the longest prompt."""


def configured(seed: int) -> Config:
    """A small run, of settings that the seed draws, without a theme."""
    settings = drawn_settings(seed)
    for choose in OF_TURNS:
        choose(settings, seed)
    return msgspec.convert(settings, Config)


def drawn(seed: int) -> Shape:
    """The shape of a seed's run."""
    draft = Draft(drawn_settings(seed), speeds(seed))
    if seed % 2:
        THEMES[seed // 2 % len(THEMES)](draft, random.Random(f"theme/{seed}"))
    for choose in OF_TURNS:
        choose(draft.settings, seed)
    rollout = draft.settings["rollout"]  # a theme may have made responses shorter than the band
    rollout["overlong_band"] = min(rollout.get("overlong_band", 0), rollout["max_new_tokens"])
    config = msgspec.convert(draft.settings, Config)
    # at lag 0 the weights are compared with those of a plain loop, which knows of no errors
    exact = config.staleness.max_lag == config.staleness.depth == 0
    if random.Random(f"errors/{seed}").random() < 0.25 and not exact:
        draft.rewards = draft.rewards._replace(errors=True)
    return Shape(config, draft.speeds, draft.rewards, draft.kinds)


def drawn_agents(seed: int) -> Shape:
    """The shape of a seed's run whose rollouts are episodes: settings, theme and speeds are those
    of its other run as far as there are such episodes, and the rest is drawn beside."""
    draft, draw = Draft(drawn_settings(seed), speeds(seed)), random.Random(f"agents/{seed}")
    if seed % 2:
        OF_AGENTS[seed // 2 % len(OF_AGENTS)](draft, random.Random(f"theme/{seed}"))
    settings, context = draft.settings, draft.settings["engine"]["context_tokens"]
    pace, late = draw.choice((0.02, 0.1, 0.5)), draw.choice((1.0, 1.0, 30.0))
    settings["agent"] = {
        "run": "scripted:agent",
        "actors": draw.choice((1, 2)),
        "concurrency": draw.choice((1, 2, 4)),
        "episode_s": late * pace * draw.choice((40.0, 200.0)),
    }
    evaluation = settings.get("evaluation", {})
    settings["evaluation"] = evaluation | {"hold_s": draw.choice((2.0, 300.0))}
    settings["agent"] |= {
        "max_calls": draw.choice((3, 8, 8)),
        "attempts": draw.choice((2, 3)),
        "mask_failed": draw.choice(((), ("search",), ("*",))),
    }
    budget = draw.choice((6, 16, 40))
    draft.change(
        rollout={
            "max_new_tokens": budget
            if budget + PROMPT <= context
            else settings["rollout"]["max_new_tokens"],
            "truncated": draw.choice(("keep", "mask")),
        },
        staleness={"finish_on": "mixed", "proximal": "behaviour"},
    )
    # each third agent may be so late that its episode grows old
    draft.speeds.think_s = lambda seed: (
        pace * draw.choice((0.2, 1.0, 1.0, 8.0)) * (1.0 if seed % 3 else late)
    )
    for choose in OF_EPISODES:
        choose(settings, seed)
    config = msgspec.convert(settings, Config)
    steady, errors = draw.random() < 0.6, draw.random() < 0.25
    rewards, cling = draft.rewards._replace(errors=errors), crowded(seed)
    steady &= not cling
    return Shape(config, draft.speeds, rewards, draft.kinds, steady=steady, cling=cling)


def speeds(seed: int) -> Speeds:
    """Seconds that things take in the run of a seed."""
    draw, saving = random.Random(f"speeds/{seed}"), random.Random(f"saving/{seed}")
    pace = draw.choice((0.01, 0.03, 0.06))
    return Speeds(
        pace=lambda: pace * draw.choice((0.5, 1.0, 1.0, 4.0)),
        start_s=lambda: draw.uniform(0.05, 0.6),
        step_s=draw.choice((0.02, 0.2, 0.5)),
        # some are written while several steps are made
        save_s=saving.choice((0.1, 0.1, 1.5, 6.0)),
        copy_s=saving.choice((0.01, 0.01, 2.0)),
    )
