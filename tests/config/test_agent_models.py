"""The table of models that agents call and that are not trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asyncrl.config import Config, ConfigError, load
from asyncrl.config.keyed_models import keyed_models
from asyncrl.config.schema import AgentConfig
from asyncrl.config.schema.other_models import MOST, other_models

GOOD = {"url": "http://127.0.0.1:8000/v1"}


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({"policy": GOOD}, "that of the trained model"),
        ({"a b": GOOD}, "a name is 1 to 128 letters"),
        ({"": GOOD}, "a name is 1 to 128 letters"),
        ({"gpt": "http://a"}, "is not a table: write \\[agent.models.gpt\\]"),
        ({"gpt": {}}, "agent.models.gpt has no url"),
        ({"gpt": {"url": 3}}, "must be a string"),
        ({"gpt": {"url": "ftp://a/v1"}}, "agent.models.gpt.url: an address is http"),
        ({"gpt": {"url": "http://[::1/v1"}}, "an address is http"),
        ({"gpt": GOOD | {"adress": "x"}}, "has no setting .*adress.*; the nearest is"),
        ({"gpt": GOOD | {"timeout_s": 0}}, "must be a number above 0"),
        ({"gpt": GOOD | {"concurrency": 0}}, "must be a whole number at least 1"),
        ({"gpt": GOOD | {"api_key_env": "A", "api_key_file": "b"}}, "a server has one key"),
        ({"gpt": {"url": "http://a.org/v1", "api_key_env": "A"}}, "cross the network"),
        ({f"m{n}": GOOD for n in range(MOST + 1)}, f"at most {MOST} are allowed"),
    ],
)
def test_what_cannot_be_another_model_is_a_sentence(models: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        Config(agent=AgentConfig(run="http", models=models))
    assert str(refused.value).endswith((".", ")."))


@pytest.mark.parametrize(
    "table",
    [GOOD | {"api_key_env": "sk-secret-1"}, {"url": "https://me:sk-secret-1@a.org/v1"}],
)
def test_a_key_in_run_toml_is_refused_and_not_repeated(table: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        AgentConfig(run="http", models={"gpt": table})
    assert "sk-secret-1" not in str(refused.value)


def test_other_models_are_for_agents() -> None:
    with pytest.raises(ConfigError, match=r"agent.models .*set agent.run"):
        Config(agent=AgentConfig(models={"gpt": GOOD}))


def test_keys_come_from_variables_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the whole table comes through a run.toml."""
    (tmp_path / "key").write_text("of-the-file\n")
    (tmp_path / "run.toml").write_text(
        '[agent]\nrun = "http"\n[agent.models.gpt]\nurl = "https://a.org/v1"\n'
        'model = "gpt-5"\napi_key_env = "OPPONENT_KEY"\ntimeout_s = 5\n'
        f'[agent.models."org/small:1"]\nurl = "http://[::1]:1/v1"\n'
        f'api_key_file = "{tmp_path}/key"\n'
    )
    agent = load(tmp_path / "run.toml", [], {}).agent
    assert other_models(agent.models)["gpt"].timeout_s == 5.0
    monkeypatch.delenv("OPPONENT_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"agent.models.gpt.api_key_env .*is not set"):
        keyed_models(agent)
    monkeypatch.setenv("OPPONENT_KEY", "of-the-variable")
    keys = {name: key for name, (_, key) in keyed_models(agent).items()}
    assert keys == {"gpt": "of-the-variable", "org/small:1": "of-the-file"}
