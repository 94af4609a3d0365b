"""Messages between the coordinator and the launcher."""

from __future__ import annotations

from typing import Literal

from asyncrl.messages.parts import Message, Part, Role


class Exited(Message, frozen=True):
    """Launcher to coordinator: this actor's process ended; `restarting` says whether another takes
    its place. `words` are its last ones, of one that ended by an error of its own."""

    role: Role
    index: int
    code: int
    restarting: bool
    words: str = ""


class Replace(Message, frozen=True):
    """Coordinator to launcher: this start of an actor is cut off; end its process, and start
    another within the restart budget."""

    role: Role
    index: int
    incarnation: int
    reason: str


class Draining(Message, frozen=True):
    """Coordinator to launcher: the run is over and drains; an actor whose process ends from now on
    is not restarted."""


class Progress(Part, frozen=True):
    """Progress of a long task: `what`, with `done` `of` its parts (0 of 0: not counted), in
    `seconds`. `left_s` are the remaining ones, None where unknown."""

    what: str
    done: float
    of: float
    seconds: float
    left_s: float | None = None
    note: str = ""

    @property
    def counted(self) -> bool:
        """True if it is known how much there is to do."""
        return self.of > 0


class SftUpdate(Part, frozen=True):
    """Numbers of a supervised run: the `loss` of the last step, that of held-out rows at
    `held_out_version` (nats a token; None before there is one), and the passes over the rows."""

    loss: float | None
    held_out: float | None
    held_out_version: int
    epochs: float


class StatusUpdate(Message, frozen=True):
    """Coordinator to launcher, about once a second: what the display shows. Rates are over the last
    seconds; shares are 0 to 1. `evaluated` are figures of sampled answers, by name;
    `accuracy_weights` says which weights of `accuracy_version` these and the accuracy are of, and
    `accuracy_asked` of `accuracy_prompts` that it is over; None if no answer has a verdict. Of
    the last step's responses there are the mean `reward`, the shares that are `exact` and
    `truncated`, their mean length and their entropy (nats a token); None before there are any.
    `done` counts what each role has done so far: tokens, verdicts, episodes, steps. `alarms` are
    sentences about the disk, the judge and what fails, as it is now. Of the last `judged` training
    answers there are the mean reward and the share that is exact; of the last groups the share that
    was `filtered`. `limit` says what limits the run now. `sft` is of a supervised run, None for any
    other."""

    seconds: float
    phase: str
    step: int
    steps: int
    reward: float | None
    accuracy: float | None
    accuracy_version: int
    generated_per_s: float
    trained_per_s: float
    lag_mean: float | None
    lag_max: int
    queue_items: int
    queue_bytes: int
    idle_trainer: float | None
    idle_rollout: float | None
    pause_seconds: float | None
    note: str
    evaluated: dict[str, float] = {}
    accuracy_weights: Literal["current", "ema"] = "current"
    exact: float | None = None
    truncated: float | None = None
    response_tokens: float | None = None
    entropy: float | None = None
    progress: list[Progress] = []
    done: dict[Role, int] = {}
    accuracy_asked: int = 0
    accuracy_prompts: int = 0
    alarms: list[str] = []
    judged: int = 0
    judged_reward: float | None = None
    judged_exact: float | None = None
    filtered: float | None = None
    limit: str = ""
    sft: SftUpdate | None = None


Healable = Literal["lost", "stalled"]
"""Ends of a life of a run after which another life may do better: the trainer's link ended, or the
run stalled."""


class RunFinished(Message, frozen=True):
    """Coordinator to launcher: the run is over, `summary.json` is written; `reason` is one
    sentence, `ok` decides the exit code. With `heals`, another life of the run may begin."""

    ok: bool
    reason: str
    heals: Healable | None = None
