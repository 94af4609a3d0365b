"""Whole runs in which agents play: coordinator, engines, trainer and scripted agents, in virtual
time."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest
import trio
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.agent_failures import LONGEST_S
from asyncrl.actors.coordinator.common_failure import OUTSIDE_S
from asyncrl.experience import events as e
from asyncrl.experience.call import RolloutStatus
from asyncrl.explain.diagnosis import diagnose
from asyncrl.explain.run_status import RunStatus
from asyncrl.simulation.scripted_agents import FIRST, TOOL, ScriptedAgents


class AgentWorld(ScriptedWorld):
    """A run whose rollouts are played by `agents`."""

    agents: ScriptedAgents

    def __init__(self, agents: ScriptedAgents | None = None, **sections: dict[str, object]) -> None:
        sections["agent"] = {"run": "my_agent:solve"} | sections.get("agent", {})
        super().__init__(configured(**sections))
        self.agents = agents or ScriptedAgents()

    def check(self) -> None:
        """The books balance, no rollout is trained twice, and nothing older than may be."""
        experience = self.store.experience
        assert experience.ledger.balances() and self.folded() == experience
        trained = Counter(event.rollout for event in self.of(e.Trained))
        assert trained and max(trained.values()) == 1
        assert max(self.lags()) <= self.config.staleness.max_lag

    def lags(self) -> Counter[int]:
        """Tokens that entered a loss, by lag."""
        found: Counter[int] = Counter()
        for batch, mask in self.learner.batches:
            at = 0
            for sample in batch.samples:
                for span in sample.spans:
                    tokens = span.end - span.start
                    found[batch.step - span.version] += mask[at : at + tokens].count(1)
                    at += tokens
        return found


async def run_well(world: AgentWorld, *others: Any) -> AgentWorld:
    outcome = await world.run(*others)
    assert outcome.ok, outcome.reason
    world.check()
    return world


async def test_episodes_are_played_judged_by_their_agents_and_trained(autojump_clock: Any) -> None:
    world = await run_well(AgentWorld())
    sealed = {event.rollout for event in world.of(e.Sealed)}
    assert sealed and sealed <= set(world.agents.seen)
    calls = Counter(event.rollout for event in world.of(e.Called))
    assert set(calls.values()) == {2}
    judged = {event.rollout: event.verdict.reward for event in world.of(e.Judged)}
    assert set(judged.values()) == {0.0, 1.0}
    # a strand of both turns, in which the answers alone are marked
    batch, _ = world.learner.batches[0]
    sample = batch.samples[0]
    (_, first), (context, second) = world.agents.seen[sample.rollout]
    assert context[1] == FIRST and context[-1] == TOOL
    assert sample.prompt_tokens == 2 and sample.share == 1.0
    assert sample.response_tokens == len(first) + 1 + len(second)
    assert sample.sampled_tokens == len(first) + len(second)


@pytest.mark.parametrize("tools", [("search",), ("other",)])
async def test_failed_calls_of_tools_are_left_out_of_the_loss(
    tools: tuple[str, ...], autojump_clock: Any
) -> None:
    """Of two calls the first one fails, in each episode."""
    agents = ScriptedAgents(failing=(0,))
    world = await run_well(AgentWorld(agents, agent={"mask_failed": tools}))
    for event in world.of(e.Trained):
        (_, first), (_, second) = agents.seen[event.rollout]
        masked = len(first) if tools == ("search",) else 0
        assert event.discarded == ({"error": masked} if masked else {})
        assert event.trained == len(first) + len(second) - masked


async def test_without_a_reward_the_verifier_judges_the_last_reply(autojump_clock: Any) -> None:
    world = AgentWorld(ScriptedAgents(reward=lambda prompt_index, seed: None))
    shown: dict[bytes, int] = {}
    judge = world.verifiers.judge

    async def judged(split: Any, prompt_index: int, ids: Any, *rest: Any) -> Any:
        shown[bytes(ids)] = prompt_index
        return await judge(split, prompt_index, ids, *rest)

    world.verifiers.judge = judged  # type: ignore[method-assign]
    await run_well(world)
    last = {
        b"".join(t.to_bytes(4, "little") for t in seen[-1][1])
        for seen in world.agents.seen.values()
    }
    assert shown and set(shown) <= last


async def test_a_killed_agents_actor_costs_no_token(autojump_clock: Any) -> None:
    world = AgentWorld(ScriptedAgents(think_s=0.5), train={"steps": 6})
    killed = 0

    async def kill() -> None:
        nonlocal killed
        for _ in range(4):
            await trio.sleep(1.7)
            world.kill("agents-0")
            killed += 1

    await run_well(world, kill)
    assert killed >= 2 and len(world.of(e.Left)) > 0
    again = [attempt for _, attempt in world.agents.attempts if attempt > 1]
    assert again and world.coordinator.parts.playing.diverged == 0
    # a call that is made again is the same call: its tokens were sampled once
    assert len({event.key for event in world.of(e.Called)}) == len(world.of(e.Called))
    tokens = world.store.experience.ledger.tokens
    assert not tokens.discarded.get("orphaned")


async def test_a_slow_tool_is_no_stall(autojump_clock: Any) -> None:
    world = AgentWorld(ScriptedAgents(think_s=50.0), supervision={"stall_s": 20.0, "restarts": 9})
    await run_well(world)


@pytest.mark.explore
@pytest.mark.parametrize("at_s", [30.2, 48.1])
async def test_the_loss_of_agents_that_thought_for_long_is_no_stall(
    at_s: float, autojump_clock: Any
) -> None:
    """Nobody said anything for longer than a stall when their actor is killed, and nobody plays
    until it is there again, seconds later."""
    supervision = {"stall_s": 20.0, "restarts": 9}
    world = AgentWorld(ScriptedAgents(think_s=50.0), supervision=supervision)

    async def kill() -> None:
        await trio.sleep(at_s)
        world.kill("agents-0")

    await run_well(world, kill)


@pytest.mark.parametrize(("hold_s", "mixed"), [(5.0, True), (500.0, False)])
async def test_agents_hold_up_an_engine_of_one_version_for_so_long(
    hold_s: float, mixed: bool, autojump_clock: Any
) -> None:
    """A held-out episode takes a minute. With five seconds of it the next version comes meanwhile,
    and it says so; with more than it needs nothing is mixed."""
    world = AgentWorld(
        ScriptedAgents(held_out_s=30.0),
        evaluation={"hold_s": hold_s},
        engine={"kind": "sglang", "slots": 8, "chunk_tokens": 4, "context_tokens": 64},
        train={"steps": 12, "eval_every": 4},
        staleness={"max_lag": 4, "depth": 2},
    )
    began = trio.current_time()
    await run_well(world)
    evaluation = world.coordinator.parts.evaluation
    assert {0, 12} <= evaluation.accuracy.keys()
    shares = [evaluation.figures[version].get("mixed", 0.0) for version in evaluation.accuracy]
    assert (max(shares) > 0) == mixed and shares[-1] == 0.0, "the last one holds up nothing"
    assert (trio.current_time() - began < 150) == mixed


@pytest.mark.explore
async def test_an_engine_that_keeps_versions_is_never_evaluated_mixed(autojump_clock: Any) -> None:
    world = AgentWorld(
        ScriptedAgents(held_out_s=30.0),
        evaluation={"hold_s": 1.0},
        train={"steps": 12, "eval_every": 4},
    )
    await run_well(world)
    figures = world.coordinator.parts.evaluation.figures
    assert figures and all("mixed" not in found for found in figures.values())


@pytest.mark.explore
async def test_an_episode_too_old_to_be_trained_is_buried(autojump_clock: Any) -> None:
    world = AgentWorld(
        ScriptedAgents(think_s=0.4, slow_s=40.0),
        train={"steps": 12, "batch_groups": 1},
        rollout={"group_size": 2, "overprovision": 2.0},
        staleness={"max_lag": 0, "depth": 1},
    )
    await run_well(world)
    assert set(+world.lags()) == {0}
    buried = [event for event in world.of(e.Buried) if event.reason == "stale"]
    assert buried and world.store.experience.ledger.tokens.discarded["stale"]


@pytest.mark.parametrize("stop_after", [0.5, 1.3, 2.9])
async def test_a_drained_run_leaves_its_episodes_for_another_attempt(
    stop_after: float, autojump_clock: Any
) -> None:
    world = AgentWorld(ScriptedAgents(think_s=0.6), train={"steps": 100})

    async def stop() -> None:
        await trio.sleep(stop_after)
        world.supervisor.interrupt()

    outcome = await world.run(stop)
    assert outcome.ok, outcome.reason
    experience = world.store.experience
    assert experience.ledger.balances() and world.folded() == experience
    statuses = experience.statuses()
    assert statuses[RolloutStatus.WAITING] and not statuses[RolloutStatus.BEGUN]
    assert not statuses[RolloutStatus.LEASED]


async def test_where_all_agents_fail_few_are_begun_and_the_run_says_so(autojump_clock: Any) -> None:
    """Minutes in which what agents need is away; then all is well."""
    began = trio.current_time()
    world = AgentWorld(ScriptedAgents(broken_s=began + 240.0))
    seen: list[tuple[int, RunStatus]] = []

    async def look() -> None:
        await trio.sleep(238)
        seen.append((len(world.of(e.Begun)), world.coordinator.status()))

    await run_well(world, look)
    ((begun, status),) = seen
    # as many as there are slots, one after 1, 2, 4, 8, 16 and 32 s, and then one a minute
    assert 14 <= begun <= 8 + 8 + 6 + 240 // 60
    (failing,) = status.failing
    assert failing.name == "agents-0" and "all connection attempts failed" in failing.reason
    assert f"All of the last {failing.episodes} episodes of agents-0 failed" in diagnose(status)
    (wait,) = [wait for wait in status.waits if wait.owner == "agents-0"]
    assert wait.name == "agents that fail" and 0 <= wait.seconds < wait.bound <= LONGEST_S
    after = world.coordinator.status()
    assert not after.failing and not [w for w in after.waits if w.owner == "agents-0"]
    assert trio.current_time() - began < 240 + LONGEST_S + 60, "one that is well, and all begin"


@pytest.mark.parametrize(
    ("reason", "most_s"),
    [
        ("ModuleNotFoundError: No module named 'tools'", 10.0),
        ("KeyError: 'answer'", 120.0),
        ("APIConnectionError: Connection error.", OUTSIDE_S + LONGEST_S),
    ],
)
async def test_a_run_whose_agents_all_fail_for_one_reason_ends_by_it(
    reason: str, most_s: float, autojump_clock: Any
) -> None:
    began = trio.current_time()
    world = AgentWorld(ScriptedAgents(broken_s=math.inf, broken=reason))
    outcome = await world.run()
    assert not outcome.ok and outcome.reason.startswith(f"{reason.rstrip('.')} (all of the first ")
    assert "agent.run" in outcome.reason
    assert trio.current_time() - began < most_s


@pytest.mark.explore
async def test_agents_that_fail_later_end_nothing(autojump_clock: Any) -> None:
    world = AgentWorld(ScriptedAgents(broken="TypeError: no"), train={"steps": 8})

    async def breaks() -> None:
        await world.until(lambda: world.learner.version >= 2)
        world.agents.broken_s = trio.current_time() + 200.0

    await run_well(world, breaks)
    assert world.coordinator.parts.playing.failures.failed >= 14


async def test_a_call_goes_to_the_engine_that_has_read_most_of_it(autojump_clock: Any) -> None:
    """Of four engines, where a slot is free."""
    world = AgentWorld(
        ScriptedAgents(turns=4, budget=4),
        rollout={"actors": 4, "max_new_tokens": 16},
        engine={"kind": "scripted", "slots": 8, "chunk_tokens": 4, "context_tokens": 64},
    )
    await run_well(world)
    holders: defaultdict[int, list[str]] = defaultdict(list)
    rollouts = {event.call: event.rollout for event in world.of(e.Called)}
    for event in world.of(e.Leased):
        holders[rollouts[event.rollout]].append(event.holder)
    again = [one == two for found in holders.values() for one, two in pairwise(found)]
    assert len(again) > 100 and sum(again) >= 0.9 * len(again)
    assert len({name for found in holders.values() for name in found}) == 4, "all are used"
