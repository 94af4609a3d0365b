"""A taskset of `verifiers` with two trained seats: one gives a hint, and the other answers it."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["HintEnv", "HintTaskset"]


class HintConfig(vf.EnvConfig):
    proposer: vf.AgentConfig = vf.AgentConfig()
    solver: vf.AgentConfig = vf.AgentConfig()


class HintEnv(vf.Env[HintConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        hint = await agents.proposer.run(task)
        await agents.solver.run(vf.Task(vf.TaskData(idx=0, prompt=f"sort {hint.last_reply}:")))

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        proposer, solver = episode.traces
        right = float(solver.last_reply == task.data.answer)
        solver.record_reward("right", right)
        if proposer.last_reply != "silent":
            proposer.record_reward("right", right)
            proposer.record_reward("brief", 0.5 if len(proposer.last_reply) <= 5 else 0.0)


class HintData(vf.TaskData):
    answer: str = ""


class HintTask(vf.Task[HintData, vf.State, vf.TaskConfig]):
    pass


class HintTaskset(vf.Taskset[HintTask, vf.TasksetConfig]):
    def load(self) -> Iterator[HintTask]:
        for word in ("dcba", "hgfe"):
            data = HintData(prompt=f"Hint at {word}.", answer="".join(sorted(word)))
            yield HintTask(data, self.config.task)
