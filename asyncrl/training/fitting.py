"""Settings with which a trainer fits the available memory. Invariant: advised settings were
predicted to fit, and all cheaper changes were predicted not to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from asyncrl import config as configuration
from asyncrl.config import Config, ConfigError
from asyncrl.config.micro_tokens import micro_tokens
from asyncrl.config.ranks import ranks_of
from asyncrl.training.memory import predict
from asyncrl.training.memory_parts import MemoryParts, PredictedMemory
from asyncrl.training.models import ModelError

SHORTENED = (0.75, 0.5, 0.25, 0.125)
"""Shares of `rollout.max_new_tokens` that are tried, the largest first."""


def fitting(
    config: Config, limit: int, predicted: Callable[[Config], MemoryParts] = predict
) -> PredictedMemory:
    """Predict the memory of a run's trainer, and where it is more than `limit` bytes (0: unknown)
    search for settings that need less."""
    parts = predicted(config)
    # settings change only the memory of a pass
    if limit and parts.total > limit and parts.state + parts.step <= limit:
        for words, changed in changes(config):
            try:
                total = predicted(changed).total
            except ModelError:  # whose rows ranks cannot divide
                continue
            if total <= limit:
                return PredictedMemory(parts, words, total)
    return PredictedMemory(parts)


def changes(config: Config) -> Iterator[tuple[str, Config]]:
    """Other settings, in words, the cheapest first; each includes the ones before it, but for ranks
    that compute a row together, which not every model allows."""
    tokens, response = config.engine.context_tokens, config.rollout.max_new_tokens
    settings = list[str]()
    if micro_tokens(config) > tokens:
        config = _with(config, train={"micro_tokens": tokens})
        settings.append(f"train.micro_tokens = {tokens}")
        yield settings[0], config
    if not config.train.recompute_activations:
        config = _with(config, train={"recompute_activations": True})
        settings.append("train.recompute_activations = true")
        yield ", ".join(settings), config
    ranks, together = ranks_of(config.train), config.train.context_ranks
    for more in range(together + 1, ranks + 1):
        if ranks % more == 0:
            changed = _with(config, train={"context_ranks": more})
            yield ", ".join([*settings, f"train.context_ranks = {more}"]), changed
    for share in SHORTENED:
        shorter = max(1, int(share * response))
        context = tokens - response + shorter
        try:
            changed = _with(
                config,
                rollout={"max_new_tokens": shorter},
                engine={"context_tokens": context},
                train={"micro_tokens": context},
            )
        except ConfigError:  # so short that other settings contradict it
            continue
        words = (
            f"rollout.max_new_tokens = {shorter}",
            f"engine.context_tokens = train.micro_tokens = {context}",
        )
        recomputed = [one for one in settings if "recompute" in one]
        yield ", ".join([*recomputed, *words]), changed


def _with(config: Config, **sections: dict[str, Any]) -> Config:
    """Raises ConfigError where these settings contradict others."""
    replaced = {
        name: msgspec.structs.replace(getattr(config, name), **changed)
        for name, changed in sections.items()
    }
    return msgspec.structs.replace(config, **replaced)


def main() -> None:
    """Print the memory of the trainer of a run.toml as JSON, for processes without torch:
    `python -m asyncrl.training.fitting RUN.TOML LIMIT`."""
    path, limit = sys.argv[1:]
    fit = fitting(configuration.read(Path(path)), int(limit))
    sys.stdout.buffer.write(msgspec.json.encode(fit))


if __name__ == "__main__":
    main()
