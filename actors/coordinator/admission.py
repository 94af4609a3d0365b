"""Turns prompts into groups of rollouts.

Invariant: training prompts are admitted in one order, which follows from the settings and the
history. A prompt that must restart comes before any new one.

The coordinator's loop calls `admit` with the number of groups that may start (see
`Stepping.groups_to_admit`). An evaluation starts its own groups (evaluation.py).
"""

from __future__ import annotations

import logging
import math

import numpy as np
import trio

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.group_sizes import GroupSizes
from asyncrl.actors.coordinator.prompts import PromptSource, ReadPrompt
from asyncrl.config import Config
from asyncrl.config.flow import fork_leaves
from asyncrl.escape import escaped
from asyncrl.experience.events import Admitted, Dropped
from asyncrl.messages import Split
from asyncrl.os_errors import machine_lacks
from asyncrl.tasks.images.kept_images import ImagesFull

logger = logging.getLogger(__name__)

SAID = 400
"""The most characters of the reason why a prompt cannot be read."""
LOGGED = 20
"""Unreadable prompts that are logged; all are counted."""
SAMPLED = 2**62
"""The key of the first sampled answer to a held-out prompt. Training's keys are smaller, or
negative."""


class Admission:
    """Starts groups while there are prompts."""

    def __init__(self, store: EventStore, prompts: PromptSource, config: Config) -> None:
        self._store = store
        self._prompts = prompts
        self._config = config
        self.sizes = GroupSizes(store, config)
        self._no_prompt_left = False  # when one was searched last
        self.unfit = 0
        """Training prompts in a row that cannot be answered."""
        self.misfit = ""
        """The name under which the last of them was dropped."""
        self.unreadable = ""
        """The reason why the last such prompt could not be read; empty if all could."""
        self._log_unreadable = LOGGED
        self.first_admission = math.inf
        """Seconds on trio's clock at which admission began; infinite before."""

    @property
    def exhausted(self) -> bool:
        """True if all training prompts are used up."""
        experience = self._store.experience
        return not experience.restarts and (
            self._no_prompt_left or self._prompts.train_item(experience.history.cursor) is None
        )

    def label(self, split: Split, prompt_index: int) -> str:
        """Return the label of a prompt's task; empty where there is one task."""
        return self._prompts.label(split, prompt_index)

    def admit(self, groups: int) -> None:
        """Start this many new training groups, or fewer if the prompts run out."""
        experience = self._store.experience
        self.first_admission = min(self.first_admission, trio.current_time())
        if groups <= 0:
            return
        live = {
            group.prompt_index for group in experience.groups.values() if group.split == "train"
        }
        for _ in range(groups):
            if experience.restarts:
                stale_group, prompt_index = next(iter(experience.restarts.items()))
                live.add(prompt_index)
                self.start("train", prompt_index, restarts=stale_group)
                continue
            chosen = self._prompts.next(experience.history, live)
            self._no_prompt_left = chosen is None
            if chosen is None:
                return
            live.add(chosen.prompt_index)
            self.start("train", chosen.prompt_index, cursor=chosen.cursor)

    def start(
        self,
        split: Split,
        prompt_index: int,
        *,
        version: int | None = None,
        restarts: int | None = None,
        cursor: int = 0,
        samples: int = 0,
    ) -> bool:
        """Admit one group. Returns False, and drops the group by name (`_misfit`), if its prompt
        cannot be answered.

        `version` pins the weights, `restarts` is the stale group whose prompt restarts, and
        `cursor` is the position from which the next training prompt is searched. A held-out prompt
        has one greedy answer, or this many `samples`. Their draws depend on the prompt and the
        sample's number, and are the same at every version.
        """
        experience, rollout = self._store.experience, self._config.rollout
        group = experience.next_group
        prompt, misfit = self._read(split, prompt_index)
        size, most, leaves = samples or 1, 0, 1
        if split == "train":
            leaves = fork_leaves(self._config)
            size, most = self.sizes.first(prompt_index) // leaves, self.sizes.grown_to
        # The key of its draws is not the group's number, because that counts evaluations too. A
        # restarted group has a negative position, so it never shares the draws of another.
        position = experience.prompts[split] if restarts is None else -1 - restarts
        key = self.sizes.most * position if split == "train" else position
        if samples:
            key = SAMPLED + samples * prompt_index
        self._store.record(
            Admitted(
                group=group,
                first=experience.next_rollout,
                size=size,
                split=split,
                prompt_index=prompt_index,
                prompt=prompt.ids,
                images=prompt.images,
                max_new_tokens=rollout.max_new_tokens,
                version=version,
                restarts=restarts,
                key=key,
                cursor=cursor,
                sampled=bool(samples),
                played=bool(self._config.agent.run),
                most=most,
                imports=self._config.foreign.most if split == "train" else 0,
                source=self._config.foreign.imported if split == "train" else "own",
                leaves=leaves,
            )
        )
        if split == "train":
            self.unfit = self.unfit + 1 if misfit else 0
            self.misfit = misfit
        if misfit:
            self._store.record(Dropped(group, misfit))
        return not misfit

    def _read(self, split: Split, prompt_index: int) -> tuple[ReadPrompt, str]:
        """A prompt, and the name of what keeps it from being answered. Without ids that is
        `prompt_unreadable` if the task, the template or the tokenizer fails on it, or `images_full`
        if its images do not fit. Raises OSError and the errors of a machine that lacks something,
        because they are not the prompt's fault."""
        try:
            prompt = self._prompts.read(split, prompt_index)
        except OSError:
            raise
        except Exception as error:  # a task's code may raise anything
            if machine_lacks(error):
                raise
            full = isinstance(error, ImagesFull)
            self.unreadable = escaped(f"{type(error).__name__}: " * (not full) + str(error), SAID)
            if self._log_unreadable:
                logger.warning(
                    "%s prompt %d cannot be read: %s", split, prompt_index, self.unreadable
                )
                self._log_unreadable -= 1
            return ReadPrompt(b""), "images_full" if full else "prompt_unreadable"
        return prompt, self._misfit(prompt.ids)

    def _misfit(self, prompt: bytes) -> str:
        """The name of what keeps a prompt (`int32` ids) from being answered; empty if nothing does.

        prompt_empty          it has no token
        prompt_too_long       with `rollout.max_new_tokens` it exceeds `engine.context_tokens`
        prompt_unknown_token  the model's embedding has no row for one of its ids
        """
        ids = np.frombuffer(prompt, np.int32)
        if not len(ids):
            return "prompt_empty"
        if len(ids) + self._config.rollout.max_new_tokens > self._config.engine.context_tokens:
            return "prompt_too_long"
        rows = self._prompts.embedded
        return "prompt_unknown_token" if rows and int(ids.max()) >= rows else ""
