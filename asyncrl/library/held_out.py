"""Held-out accuracy of a model directory, measured in this process, without a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import trio

from asyncrl.actors.reward_actor import open_verifiers
from asyncrl.actors.verifier_process import TimedVerdict
from asyncrl.actors.worker_forks import WorkersLost
from asyncrl.config import Config, ConfigError, judging
from asyncrl.config.errors import input_error
from asyncrl.config.mix import each
from asyncrl.escape import escaped
from asyncrl.library.hand_sampler import Sampler
from asyncrl.messages import Scored
from asyncrl.runtime.processes.own_waits import own_waits
from asyncrl.tasks.judge_checks import opened

AT_ONCE = 64
"""Prompts that are answered before their answers are judged."""
ASKED = (
    "task.verifier asks a judge on a server: its verdicts cost money, and a run keeps them; "
    "evaluate the model by a run."
)


class HeldOutPrompts:
    """The held-out prompts of a configuration's task."""

    def __init__(self, config: Config) -> None:
        """Open the task. Raises ConfigError if it cannot be evaluated without a run: for agents,
        for judges on servers, and without held-out prompts."""
        if config.agent.run:
            raise ConfigError("agent.run is set: what an agent does is evaluated by a run alone.")
        if any(member.verifier == judging.VERIFIER for member in each(config.task)):
            raise ConfigError(ASKED)
        self._config, self._task = config, opened(config.task, config.run.seed)
        self.prompts = self._task.size("evaluation")
        """The number of prompts."""
        if not self.prompts:
            raise ConfigError("the task has no held-out prompts; set task.eval_size.")

    def right(self, model: Path, say: Callable[[str], object] = lambda words: None) -> int:
        """Answer each prompt greedily by the model in a directory, and judge the answers in the
        sandbox, as a run does. Returns the number of right answers; one without a verdict is not
        right. Raises ConfigError."""
        sampler = Sampler(model, self._config)
        try:
            return trio.run(self._judged, sampler, model, say)
        except ValueError as error:  # a prompt does not fit into the context
            raise ConfigError(f"{escaped(str(error))}.") from None
        except BaseException as error:
            if (wrong := input_error(error) or _lost(error)) is None:
                raise
            raise ConfigError(f"{escaped(str(wrong)).removesuffix('.')}.") from None

    async def _judged(self, sampler: Sampler, model: Path, say: Callable[[str], object]) -> int:
        task, config, right = self._task, self._config, 0
        async with open_verifiers(
            config.task, config.run.seed, str(model), own_waits()
        ) as verifiers:
            for begin in range(0, self.prompts, AT_ONCE):
                say(f"answering held-out prompts, {begin} of {self.prompts}")
                indices = range(begin, min(begin + AT_ONCE, self.prompts))
                asked = [task.prompt("evaluation", index) for index in indices]
                greedy = partial(sampler.generate, asked, temperature=0.0)
                answers = await trio.to_thread.run_sync(greedy)
                for index, answer in zip(indices, answers, strict=True):
                    first = int(np.flatnonzero(answer.mask)[0])
                    reply = await verifiers.judge(
                        "evaluation",
                        index,
                        answer.ids[first:].tobytes(),
                        answer.finish,
                        answer.ids[:first].tobytes(),
                    )
                    if not isinstance(reply, TimedVerdict):
                        raise ConfigError(ASKED)
                    right += isinstance(reply.verdict, Scored) and reply.verdict.exact
        return right


def _lost(error: BaseException) -> WorkersLost | None:
    """The first end of the verifiers' processes in an error, which may be a group."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_lost, error.exceptions)), None)
    return error if isinstance(error, WorkersLost) else None
