"""The settings of SGLang: a section in a section, and what in it contradicts what."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.config import Config, ConfigError, load, read, write
from asyncrl.config.schema import SglangConfig

SGLANG = "engine.kind=sglang"
LAUNCH = 'engine.sglang.launch=["/opt/sglang/bin/python"]'
URLS = 'engine.sglang.urls=["http://a:30000", "https://b:30000"]'
TWO = "rollout.actors=2"
HOST, ROUTER = "engine.sglang.host=trainer", "engine.sglang.router=http://r:1"


def refusal(*sets: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(None, sets, {})
    return str(error.value)


def test_a_section_in_a_section_is_read_from_a_file_and_from_set(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[engine]\nkind = "sglang"\nslots = 8\n[engine.sglang]\nlaunch = ["python"]\n')
    config = load(path, ["engine.sglang.tensor_parallel=2"], {})
    assert config.engine.slots == 8 and config.engine.sglang == SglangConfig(
        launch=("python",), tensor_parallel=2
    )
    write(config, path)
    assert read(path) == config


@pytest.mark.parametrize(
    "sets", [(SGLANG, LAUNCH), (SGLANG, URLS, TWO, HOST), (SGLANG, URLS, HOST, ROUTER), (URLS,)]
)
def test_what_is_whole_passes(sets: tuple[str, ...]) -> None:
    load(None, sets, {})


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ((SGLANG,), ("engine.sglang.launch", "engine.sglang.urls")),
        ((SGLANG, LAUNCH, URLS, TWO), ("engine.sglang.launch", "engine.sglang.urls")),
        ((SGLANG, URLS), ("set rollout.actors to 2",)),
        ((SGLANG, TWO, 'engine.sglang.urls=["http://a:1", "http://a:1"]'), ("twice",)),
        ((SGLANG, 'engine.sglang.urls=["a:30000"]'), ("http://host:port",)),
        ((SGLANG, 'engine.sglang.urls=["http://[a:30000"]'), ("http://host:port",)),
        ((SGLANG, 'engine.sglang.urls=["http://a:b"]'), ("http://host:port",)),
        ((SGLANG, URLS, "engine.sglang.router=r:1"), ("engine.sglang.router", "http://host:port")),
        (
            (SGLANG, URLS, TWO, "engine.sglang.router=http://r:1"),
            ("engine.sglang.router", "set rollout.actors to 1"),
        ),
        ((SGLANG, LAUNCH, "engine.sglang.router=http://r:1"), ("engine.sglang.router", "urls")),
        ((SGLANG, LAUNCH, "staleness.finish_on=own"), ("finish_on", "mixed")),
        ((SGLANG, URLS, TWO), ("engine.sglang.host", "http://a:30000 would fetch weights")),
        ((SGLANG, LAUNCH, "engine.sglang.backend=nccl"), ("engine.sglang.device", "gloo")),
        (
            (SGLANG, LAUNCH, "engine.sglang.api_key_file=key"),
            ("engine.sglang.api_key_file", "makes a key for servers that it starts"),
        ),
        (
            (SGLANG, LAUNCH, 'engine.sglang.arguments=["--api-key", "mine"]'),
            ("engine.sglang.arguments", "remove --api-key, --config and --uds"),
        ),
        (
            (SGLANG, LAUNCH, 'engine.sglang.arguments=["--config=mine.yaml"]'),
            ("engine.sglang.arguments", "remove --api-key, --config and --uds"),
        ),
        (("engine.sglang.url=1",), ("nearest is engine.sglang.urls",)),
        (("engine.sglang=1",), ("is a section",)),
        (("engine.sglang.urls.a=1",), ("no further settings",)),
        (('engine.sglang.urls=["http://a", 3]',), ("a list of strings",)),
        (('engine.sglang.arguments=["\\u0000"]',), ("a list of strings",)),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    sets: tuple[str, ...], words: tuple[str, ...]
) -> None:
    said = refusal(*sets)
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    "text",
    ["[engine]\nsglang = 3\n", "[engine.sglang.urls]\nx = 1\n", "[engine.sglang]\nurl = 1\n"],
)
def test_a_file_is_refused_likewise(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"run\.toml: .*engine\.sglang"):
        load(path, [], {})


def test_the_defaults_use_none_of_it() -> None:
    assert Config().engine.sglang == SglangConfig()
