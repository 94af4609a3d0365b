"""game.toml: a run for each policy, and one sentence for what is wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from asyncrl.config import ConfigError
from asyncrl.config.game import is_game, load_game
from asyncrl.config.load import settings_in
from asyncrl.config.shared_servers import shares_servers

GAME = """
[game]
run = "./play.py:play"
dir = "games"
[task]
eval_size = 0
[rollout]
group_size = 4
[[policy]]
name = "one"
[[policy]]
name = "two"
train = { lr = 0.5 }
[policy.staleness]
max_lag = 2
"""


def written(folder: Path, text: str) -> Path:
    (path := folder / "game.toml").write_text(text)
    (folder / "play.py").write_text("async def play(client, episode): ...")
    return path


def test_each_policy_has_the_shared_tables_and_its_own(tmp_path: Path) -> None:
    path = written(tmp_path, GAME)
    assert is_game(settings_in(path))
    found, policies = load_game(path, ["rollout.max_new_tokens=7"], {})
    host, guest = policies["one"], policies["two"]
    assert found == "games" and [*policies] == ["one", "two"]
    assert host.agent.run == f"{tmp_path}/play.py:play" and host.game.guests == ("two",)
    assert guest.agent.run == "guest" and guest.game.policy == "two" and not guest.game.guests
    assert (host.run.dir, guest.run.dir) == ("games/one", "games/two")
    assert host.rollout.group_size == guest.rollout.group_size == 4
    assert host.rollout.max_new_tokens == guest.rollout.max_new_tokens == 7
    assert guest.train.lr == 0.5 != host.train.lr and guest.staleness.max_lag == 2
    assert load_game(path, ["run.dir=there"], {}).dir == "there"


def test_a_frozen_policy_has_the_settings_of_the_one_whose_past_it_is(tmp_path: Path) -> None:
    more = '[[policy]]\nname = "past"\nfrozen = "two"\ndraw = "pfsp"\nengine = { slots = 3 }\n'
    _, policies = load_game(written(tmp_path, GAME + more), [], {})
    past = policies["past"]
    assert (past.game.frozen, past.game.draw, past.game.versions) == (("two",), "pfsp", 8)
    assert past.train.lr == 0.5 and past.engine.slots == 3 and past.agent.run == "guest"
    assert policies["one"].game.guests == ("two", "past") and policies["one"].game.past == ("past",)
    listed = more.replace('"two"', '["a", "/b"]')
    past = load_game(written(tmp_path, GAME + listed), [], {})[1]["past"]
    assert past.game.frozen == (f"{tmp_path}/a", "/b") and past.model.path == f"{tmp_path}/a"
    with pytest.raises(ConfigError, match=r"set train\.checkpoint_every of it"):
        load_game(written(tmp_path, GAME + more), ["train.checkpoint_every=0"], {})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('frozen = "three"', "past versions of 'three', which is no policy of this game"),
        ('frozen = "past"', "past versions of past, which is frozen itself and has none"),
        ("frozen = []", "must be the name of a policy, or a list of model directories"),
        ("frozen = 3", "must be the name of a policy, or a list of model directories"),
        ('draw = "latest"', "draw is of a frozen policy, and this one is trained"),
        ('frozen = "two"\ndraw = "best"', "game.draw"),
        ('frozen = "two"\nversions = 0', "game.versions"),
        ('frozen = ["a", "b"]\nversions = 1', "not all of these versions would be held"),
        ('frozen = "two"\nengine = { kind = "scripted" }', "held by the embedded engine"),
        (
            'frozen = "one"\n[[policy]]\nname = "older"\nfrozen = "past"',
            "older is past versions of past, which is frozen itself",
        ),
    ],
)
def test_opponents_that_cannot_be_are_one_sentence(tmp_path: Path, more: str, said: str) -> None:
    path = written(tmp_path, f'{GAME}[[policy]]\nname = "past"\n{more}\n')
    with pytest.raises(ConfigError, match=said) as raised:
        load_game(path, [], {})
    assert "\n" not in str(raised.value)


def test_the_game_on_the_page_is_the_one_of_the_examples() -> None:
    docs = Path(__file__).parents[2] / "docs"
    _, _, after = (docs / "policies.md").read_text().partition("```toml\n# game.toml")
    shown, _, _ = after.partition("```")
    example = (docs / "examples/guessing/game.toml").read_text()
    assert tomllib.loads(f"#{shown}") == tomllib.loads(example)


SERVED = """
[engine]
kind = "vllm"
[engine.vllm]
urls = ["http://127.0.0.1:9"]
[model]
path = "base"
[model.lora]
rank = 4
served = "adapters"
"""


def test_policies_of_one_base_share_a_server_by_their_adapters(tmp_path: Path) -> None:
    _, policies = load_game(written(tmp_path, GAME + SERVED), [], {})
    assert all(map(shares_servers, policies.values()))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('served = "adapters"', "", "each would load its weights there: give each its own"),
        ("rank = 4\nserved", "rank = 0\nserved", "each would load its weights there"),
        ("[policy.staleness]", '[policy.model]\npath = "/b"\n[policy.staleness]', "has one base"),
    ],
)
def test_policies_that_would_load_into_one_server_are_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    path = written(tmp_path, (GAME + SERVED).replace(old, new))
    with pytest.raises(ConfigError, match=rf"policies one and two have one server, .*{said}"):
        load_game(path, [], {})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "one"', 'name = "one"\nfrozen = "two"', "put a trained one first"),
        ('run = "./play.py:play"', "", r"\[game\] has no run: name the function"),
        ('run = "./play.py:play"', 'run = ["sh"]', "game.run is .*, and must be a text"),
        ('run = "./play.py:play"', 'run = "http"', "a game is a function: name one"),
        ('run = "./play.py:play"', 'run = "guest"', "a guest run is started by"),
        ('dir = "games"', 'page = "x"', "no setting game.page in a game.toml"),
        ('[[policy]]\nname = "one"\n', "", "two policies or more"),
        ('name = "one"', 'name = "two"', "two policies have one name"),
        ('name = "one"', 'name = "a b"', "a policy has the name 'a b'"),
        ('name = "one"', 'name = "policy"', "and not 'policy'"),
        ("max_lag = 2", "max_log = 2", "policy two: there is no setting staleness.max_log"),
        ("max_lag = 2", 'on_stale = "restart"', "set on_stale to mask or drop"),
        ("eval_size = 0", "eval_size = 4", "a game is not played on held-out prompts"),
        ("group_size = 4", 'group_size = 4\nsizing = "difficulty"', "set sizing to fixed"),
        ("eval_size = 0", 'eval_size = 0\ncurriculum = "unsolved"', "set curriculum to in_order"),
        ("train = {", "rollout = { group_size = 8 }\ntrain = {", "differ in rollout.group_size"),
        ("train = {", "run = { seed = 8 }\ntrain = {", "differ in run.seed"),
        ("train = {", 'agent = { run = "x:y" }\ntrain = {', "agent.run is the game's: remove it"),
        ("[rollout]", "[metrics]\nport = 9000\n[rollout]", "have one port, 9000"),
        (
            "[rollout]",
            '[cluster]\nkind = "ray"\n[rollout]',
            "a game are on one machine",
        ),
        ("[rollout]", '[agent.models.gpt]\nurl = "http://a/v1"\n[rollout]', "remove agent.models"),
        ("[rollout]", '[share]\npath = "/x"\n[rollout]', "groups of episodes cannot be shared"),
    ],
)
def test_what_is_no_game_is_one_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = written(tmp_path, GAME)
    assert GAME.count(old) == 1
    path.write_text(GAME.replace(old, new))
    with pytest.raises(ConfigError, match=said) as raised:
        load_game(path, [], {})
    assert "\n" not in str(raised.value)


def test_a_policy_that_is_a_table_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, GAME.partition("[[policy]]")[0] + 'policy.name = "one"\n')
    path.write_text('policy = "one"\n[game]\nrun = "a:b"\n')
    with pytest.raises(ConfigError, match=r"write each policy as a table of its own, \[\[policy"):
        load_game(path, [], {})


def test_a_run_toml_is_no_game(tmp_path: Path) -> None:
    (path := tmp_path / "run.toml").write_text('[game]\npolicy = "one"\n[train]\nsteps = 3\n')
    assert not is_game(settings_in(path))
