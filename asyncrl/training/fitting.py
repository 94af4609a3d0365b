"""Settings with which a trainer fits the memory that there is. Invariant: what is advised was
predicted to fit, and what costs less was predicted not to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from asyncrl import config as configuration
from asyncrl.config import Config, ConfigError
from asyncrl.training.memory import predict
from asyncrl.training.memory_parts import MemoryParts, PredictedMemory

SHORTENED = (0.75, 0.5, 0.25, 0.125)
"""Shares of `rollout.max_new_tokens` that are tried, the largest first."""


def fitting(
    config: Config, limit: int, predicted: Callable[[Config], MemoryParts] = predict
) -> PredictedMemory:
    """Predict the memory of a run's trainer, and where it is more than `limit` bytes (0: nobody
    knows) look for settings that need less."""
    parts = predicted(config)
    # what a pass has is all that settings change
    if limit and parts.total > limit and parts.state + parts.step <= limit:
        for words, changed in changes(config):
            if (total := predicted(changed).total) <= limit:
                return PredictedMemory(parts, words, total)
    return PredictedMemory(parts)


def changes(config: Config) -> Iterator[tuple[str, Config]]:
    """Other settings, in words, those that cost least first; each has the ones before it, too."""
    tokens, response = config.engine.context_tokens, config.rollout.max_new_tokens
    said = list[str]()
    if config.train.micro_tokens > tokens:
        config = _with(config, train={"micro_tokens": tokens})
        said.append(f"train.micro_tokens = {tokens}")
        yield said[0], config
    if not config.train.recompute_activations:
        config = _with(config, train={"recompute_activations": True})
        said.append("train.recompute_activations = true")
        yield ", ".join(said), config
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
        recomputed = [one for one in said if "recompute" in one]
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
    found = fitting(configuration.read(Path(path)), int(limit))
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
