"""A frozen policy of a game: which version plays, what is kept, and what becomes a request."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from asyncrl.algorithms.selection.league import LeagueRule, PastVersion, drawn
from asyncrl.algorithms.selection.league_latest import Latest
from asyncrl.algorithms.selection.league_pfsp import Pfsp
from asyncrl.algorithms.selection.league_uniform import Uniform
from asyncrl.config import Config
from asyncrl.config.schema.game_section import GameConfig
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.launch.past.past_draws import PastDraws
from asyncrl.launch.past.past_games import PastGames
from asyncrl.launch.past.past_player import PastVersions
from asyncrl.launch.past.past_versions import forget_version, keep_version, kept_versions
from asyncrl.messages import Ask, Enough, KeepGame, Played, Reply, Seek, Standing
from asyncrl.training.checkpoint_index import Checkpoint

VERSIONS = [0, 20, 40]


def test_a_group_meets_the_version_that_it_drew_first_whatever_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "draws"
    first = PastDraws(path, Uniform(), "a key")
    found = {group: first.draw(group, VERSIONS) for group in range(40)}
    assert set(found.values()) == set(VERSIONS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])  # the last draw was being written when all was killed
    again = PastDraws(path, Uniform(), "a key")
    assert {group: again.draw(group, [*VERSIONS, 60]) for group in range(39)} == {
        group: found[group] for group in range(39)
    }
    again.draw(39, [60])
    again.draw(40, [60])
    assert PastDraws(path, Latest(), "another key").draw(40, VERSIONS) == 60
    other = PastDraws(tmp_path / "other", Uniform(), "a key")
    assert {group: other.draw(group, VERSIONS) for group in range(40)} == found  # by the key alone


def test_versions_that_win_are_drawn_most_and_a_game_counts_once(tmp_path: Path) -> None:
    draws = PastDraws(tmp_path / "draws", Pfsp(), "a key")
    for game in range(30):
        draws.end(game, 0, 0.0)
        draws.end(game, 20, 1.0)
        draws.end(game, 20, 1.0)  # its host was killed, and ended it again
    for of in (draws, PastDraws(tmp_path / "draws", Pfsp(), "a key")):
        counts = Counter(of.draw(group, [0, 20]) for group in range(100, 200))
        assert counts[20] > 90
    assert draws._past(20).games == 30


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1.0, float("nan")], [1.0, -1.0], [1.0]])
def test_a_rule_that_weighs_no_version_is_one_sentence(weights: list[float]) -> None:
    class Own(LeagueRule):
        def weights(self, past: object) -> list[float]:
            return weights

    with pytest.raises(ValueError, match=r"Own weighs 2 versions as .*: give each a weight"):
        drawn(Own(), [PastVersion(0), PastVersion(20)], "key")


def test_the_model_of_a_checkpoint_is_kept_when_that_is_removed(tmp_path: Path) -> None:
    (step := tmp_path / "step-000020").mkdir()
    for name in ("config.json", "model.safetensors", "trainer.json", "trainer.safetensors"):
        (step / name).write_text(name)
    path = keep_version(tmp_path, Checkpoint(step, 20))
    for file in step.iterdir():
        file.unlink()
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors"]
    (path.parent / ".v40").mkdir()  # a kill came between
    assert kept_versions(tmp_path) == {20: path}
    forget_version(path)
    assert kept_versions(tmp_path) == {}


async def test_versions_are_taken_in_as_checkpoints_come_and_thinned_out(tmp_path: Path) -> None:
    kept, gone = list[int](), list[int]()

    class Engine:
        unpin = staticmethod(gone.append)

    class Versions(PastVersions):
        async def _load(self, version: int, path: Path) -> None:
            kept.append(version)

    def opened() -> PastVersions:
        config = Config(game=GameConfig(frozen=("solver",), versions=3))
        return Versions(config, tmp_path / "past", Engine(), tmp_path)  # type: ignore[arg-type]

    versions = opened()
    await versions.open()
    await versions.renew(set())
    assert kept == versions.held == [0]
    for version in (10, 20, 30, 40):
        step = tmp_path / "solver" / "checkpoints" / f"step-{version:06d}"
        step.mkdir(parents=True)
        (step / "config.json").write_text("")
        await versions.renew({10} if version == 30 else set())
    # 10 played when it had to go, and went as soon as it did not; then 30 was closest to others
    assert kept == [0, 10, 20, 30, 40] and gone == [10, 30] and versions.held == [0, 20, 40]
    assert opened().held == [0, 20, 40]


def ids(*tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(tokens, np.int32)


def test_a_game_is_played_by_its_version_and_again_by_the_same_draws() -> None:
    games = PastGames(tokens=6, temperature=1.0, max_calls=4, context_tokens=32)
    seek = Seek(3, 9, Standing(12, [8], []))
    assert games.stopped(seek) is None
    play = games.begin(seek, 40)
    asked = games.ask(Ask(9, 1, 0, 4, []), ids(7, 8))
    assert isinstance(asked, Request) and (asked.version, asked.max_new_tokens) == (40, 4)
    other = games.begin(Seek(4, 10, seek.standing), 20)
    theirs = games.ask(Ask(10, 1, 0, 4, []), ids(7, 8))
    assert isinstance(theirs, Request) and theirs.version == 20
    assert theirs.rollout != asked.rollout and theirs.key != asked.key
    zeros = np.zeros(2, np.float32)
    reply = games.take(Chunk(asked.rollout, 1, 40, 0, ids(5, 6), zeros, ""))
    assert isinstance(reply, Reply) and (reply.rollout, reply.number) == (play.rollout, 0)
    assert games.enough(Enough(9, 1, 0, 1)) == [asked.rollout]
    assert games.take(Chunk(asked.rollout, 1, 40, 2, ids(), zeros[:0], "interrupted")) is None
    full = games.ask(Ask(9, 1, 1, 9, []), ids(7, 8, 5))
    assert isinstance(full, Request) and full.max_new_tokens == 5
    refused = games.refuse(full, "no room")
    assert (refused.number, refused.refused) == (1, "no room")
    # its host was killed: the next attempt is sought while this one lives
    stop = games.stopped(seek)
    assert stop is not None and (stop.rollout, stop.attempt) == (9, 1)
    assert games.begin(seek, 40).attempt == 2 and games.playing == {20, 40}
    assert games.ask(Ask(9, 1, 2, 4, []), ids(7)) is None  # of the attempt that is over
    again = games.ask(Ask(9, 2, 0, 4, []), ids(7, 8))
    assert isinstance(again, Request) and again.key == asked.key
    assert games.keep(KeepGame(1, 9, 2)) == "live" and games.keep(KeepGame(2, 9, 1)) == "over"
    ended = games.played(Played(9, 2, "stop"))
    assert ended is not None and ended.version == 40 and games.keep(KeepGame(3, 9, 2)) == "ended"
    assert games.played(Played(10, 1, "", "left", "", "wait")) is None
    assert games.keep(KeepGame(4, 10, other.attempt)) == "over" and games.playing == set()
    games.begin(Seek(5, 14, Standing(16, [12], [])), 20)
    assert games.keep(KeepGame(6, 9, 2)) == "over"  # its host does not play it any more
