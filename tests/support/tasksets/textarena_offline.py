"""TextArena's games that need no download, as a taskset of the `verifiers` package: its own loop
plays them (`verifiers.v1.tasksets.textarena`), whose taskset offers word games alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import textarena
import verifiers.v1 as vf
from verifiers.v1.tasksets.textarena.taskset import TextArenaData, TextArenaEnv, TextArenaTask

__all__ = ["OfflineTaskset", "TextArenaEnv"]


class OfflineConfig(vf.TasksetConfig):
    game: str = "GuessTheNumber-v0"


class OfflineTaskset(vf.Taskset[TextArenaTask, OfflineConfig]):
    INFINITE = True

    def load(self) -> Iterator[TextArenaTask]:
        for seed in itertools.count():
            random.seed(seed)
            game = textarena.make(env_id=self.config.game)
            game.reset(num_players=1)
            data = TextArenaData(
                prompt=str(game.get_observation()[1]),
                info={"game": self.config.game, "seed": seed},
            )
            yield TextArenaTask(data, self.config.task)
