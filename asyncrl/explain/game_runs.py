"""Answers for a game: the runs of its policies, and what `asyncrl why GAME` says of them.
Invariant: one policy whose run cannot be read hides no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from asyncrl.config.errors import ConfigError
from asyncrl.explain.conditions.sides import IDLE
from asyncrl.explain.diagnosis import idle
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.run_list import runs_in
from asyncrl.explain.why import OLD_S, why
from asyncrl.messages import Role
from asyncrl.words import share

SIDES: dict[Role, str] = {"trainer": "trainer is", "rollout": "rollout actors are"}
"""The sides of a run, each with its verb."""


def policy_runs(game: Path) -> list[RunFiles]:
    """The run of each policy, by name. Raises ConfigError if there is none, or if the directory
    cannot be read."""
    if not (runs := runs_in(game)):
        raise ConfigError(f"{game}: no policy of this game has a run; put their directories back.")
    return sorted(runs, key=lambda files: files.path)


def why_game(game: Path, now: float) -> Iterator[str]:
    """The busiest policy, then what `why` says of each, at `now` (seconds since 1970). A run that
    cannot be read has its error for an answer. Raises ConfigError as `policy_runs`."""
    runs = policy_runs(game)
    if limit := _limit(runs, now):
        yield limit
    for files in runs:
        try:
            sentences = why(files, now)
        except ConfigError as error:
            sentences = [str(error)]
        for sentence in sentences:
            yield f"{files.path.name} │ {sentence}"


def _limit(runs: list[RunFiles], now: float) -> str:
    """Say which policy the others wait for: the one with the side that is idle least, as all play
    the same games. Empty if each side of each idles, or fewer than two train now."""
    shares = list[tuple[float, str, str]]()
    training = 0
    for files in runs:
        with suppress(ConfigError):
            status = files.last_status
            if status is None or status.phase != "run":
                continue
            if now - status.at > OLD_S or not files.lives:
                continue
            training += 1
            for role, words in SIDES.items():
                if (found := idle(status, role)) is not None:
                    shares.append((found, files.path.name, words))
    least, name, words = min(shares, default=(1.0, "", ""))
    if training < 2 or least >= IDLE:
        return ""
    return f"The game waits for {name} most: its {words} idle for {share(least)} of the time."
