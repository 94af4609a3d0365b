"""Models by name: found in the cache of a hub, outlined for a check, or downloaded, through the
real `huggingface_hub` and a hub on loopback."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from closed_port import closed_port
from hub_double import COMMIT, HubDouble, serving
from huggingface_hub import constants
from safetensors.numpy import save_file

from asyncrl import config as configuration
from asyncrl.bundled import bundled_model
from asyncrl.config import Config, ConfigError, load
from asyncrl.config.model_names import of_snapshot
from asyncrl.launch import preflight
from asyncrl.launch.hub import hub_models, hub_process
from asyncrl.launch.hub.hub_files import misfit
from asyncrl.launch.hub.hub_models import model_directory, named_models, with_directories
from asyncrl.launch.model_directories import check_directory
from asyncrl.launch.publication_row import stored_weights, weights_row
from asyncrl.launch.weight_numbers import check_numbers

BYTES = 2**18
"""Bytes of the weights of a file: more than an outline reads of it."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a model in two shards, and others of its repository."""
    folder = tmp_path_factory.mktemp("model")
    bundled_model.write_tokenizer(folder, ["a"])
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": 300}))
    shards = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    for part, shard in enumerate(shards):
        save_file({f"w{part}": np.ones(BYTES // 2, np.float16)}, folder / shard)
    index = {"weight_map": {"w0": shards[0], "w1": shards[1]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in ("pytorch_model.bin", "modeling_own.py", "README.md"):
        (folder / name).write_bytes(b"never read")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


SHARD = "model-00002-of-00002.safetensors"
PICKLED = frozenset({"pytorch_model.bin", "modeling_own.py", "README.md"})


@pytest.fixture
def hub(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubDouble]:
    """A hub with this model, which is the one of the environment; its cache is empty."""
    monkeypatch.chdir(tmp_path)
    with serving(HubDouble(dict(files))) as double:
        monkeypatch.setenv("HF_ENDPOINT", double.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        for name in ("HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        yield double


@pytest.fixture
def inside(hub: HubDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library answers in this process, which has imported it, with the variables as they are
    now; a process of its own for each of many faults takes half a second."""
    for name, value in {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(Path.cwd() / "home/hub"),
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(hub_models, "_replies", lambda *of: [hub_process.reply(of[-1])])


def snapshot(home: Path, commit: str = COMMIT) -> Path:
    return home / "home/hub/models--org--name/snapshots" / commit


def config(*sets: str) -> Config:
    return load(None, ["model.path=org/name", *sets], {})


def refusal(text: str = "org/name") -> str:
    """The sentence for a name that is none."""
    with pytest.raises(ConfigError) as caught:
        model_directory(text)
    said = str(caught.value)
    assert said.endswith(".") and said.isprintable() and said.count(". ") == 0, said
    return said


def test_a_name_is_outlined_then_downloaded_then_found(hub: HubDouble, tmp_path: Path) -> None:
    """A check reads the headers of weights, and not the weights; a run gets safetensors alone; what
    is there is not asked for again."""
    with named_models() as named:
        outlined = named.find(config(), None)
        outline = Path(outlined.model.path)
        assert named.missing and str(of_snapshot(outline)) == f"org/name@{COMMIT}"
        check_directory("model.path", outline)
        assert check_numbers("model.path", outline) == [] and stored_weights(outline) == BYTES
        assert "converted without loss" in weights_row(outlined)[0].meaning
        (row,) = named.rows
        assert row.value == "512.2 KiB to download" and "in 2 files" in row.meaning
        assert hub.sent < 2 * (BYTES + 2**15) and not hub.asked_for("bin")
        assert named.by_name(f"{outline}/config.json") == f"org/name@{COMMIT}/config.json"

        named.download()
        settled = named.settled(outlined)
        assert Path(settled.model.path) == snapshot(tmp_path) and not named.missing
        (row,) = named.rows
        assert row.value == "of a hub" and str(tmp_path / "home/hub") in row.meaning
    assert not outline.exists()
    there = {path.name: path.read_bytes() for path in snapshot(tmp_path).iterdir()}
    assert there == {name: data for name, data in hub.files.items() if name not in PICKLED}

    hub.seen.clear()
    assert model_directory("org/name") == snapshot(tmp_path)
    assert [path for _, path, _ in hub.seen] == ["/api/models/org/name/revision/main"]
    hub.seen.clear()
    assert model_directory(f"org/name@{COMMIT}") == snapshot(tmp_path) and not hub.seen
    hub.status = 500
    assert model_directory("org/name") == snapshot(tmp_path)  # which the hub need not say again


@pytest.mark.explore
def test_offline_the_cache_alone_is_asked(
    hub: HubDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = refusal()
    assert "which is not in the cache" in said and "HF_HUB_OFFLINE is set" in said
    assert not hub.seen
    monkeypatch.delenv("HF_HUB_OFFLINE")
    model_directory("org/name")
    hub.seen.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert model_directory("org/name") == snapshot(tmp_path) and not hub.seen
    (snapshot(tmp_path) / SHARD).unlink()
    shutil.rmtree(tmp_path / "home/hub/models--org--name/trees")  # another program filled the cache
    assert "of which a part is in the cache" in refusal()


def test_a_hub_that_cannot_be_reached_is_a_sentence(
    inside: None, hub: HubDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a copy in the cache it is a note."""
    model_directory("org/name")
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    with named_models() as named:
        assert named.find(config(), None).model.path == str(snapshot(tmp_path))
        assert "copy in the cache is used, of commit 0123" in named.rows[-1].meaning
        assert "cannot be reached" in named.rows[-1].meaning
    (snapshot(tmp_path) / SHARD).unlink()
    said = refusal()
    assert "of which a part is in the cache" in said and "cannot be reached" in said


def test_a_download_that_breaks_off_goes_on(inside: None, hub: HubDouble, tmp_path: Path) -> None:
    """In the file that broke off from the piece that came last; after an end of the process with
    the files that are not there."""
    piece = constants.DOWNLOAD_CHUNK_SIZE
    hub.files["merges.txt"] = bytes(piece + 9)
    hub.breaks["merges.txt"] = piece + 5
    model_directory("org/name")
    assert hub.asked_for("merges.txt") == ["", f"bytes={piece}-"]
    (snapshot(tmp_path) / SHARD).resolve().unlink()
    (snapshot(tmp_path) / SHARD).unlink()
    hub.seen.clear()
    model_directory("org/name")
    assert hub.asked_for(SHARD) and not hub.asked_for("model-00001") and not hub.asked_for("config")
    assert (snapshot(tmp_path) / SHARD).read_bytes() == hub.files[SHARD]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "refuses it (status 401): set HF_TOKEN"),
        (403, "refuses it (status 403): set HF_TOKEN"),
        (404, "answers with status 404"),
        (429, "too many requests"),
        (500, "answers with status 500: try again later"),
    ],
)
def test_a_status_is_a_sentence(inside: None, hub: HubDouble, status: int, said: str) -> None:
    hub.status = status
    assert said in refusal()


def test_the_key_is_that_of_the_environment_and_is_never_said(
    inside: None, hub: HubDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_verysecret"
    (tmp_path / "home").mkdir()
    (tmp_path / "home/token").write_text(hub.token)  # of a login, which is not this run's
    assert "which is gated: accept its conditions at" in refusal()
    monkeypatch.setenv("HF_TOKEN", "hf_anothersecret")
    assert "secret" not in refusal()
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert model_directory("org/name") == snapshot(tmp_path)
    assert "has no such model" in refusal("org/other") and "secret" not in refusal("org/other")
    assert "no revision 'v2' of it" in refusal("org/name@v2")
    hub.refs["v2"] = COMMIT
    assert model_directory("org/name@v2") == snapshot(tmp_path)


GOOD = {"config.json": 1, "tokenizer.json": 1, "model.safetensors": 1}


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (GOOD, ""),
        (GOOD | {"onnx/model.onnx": 1, "a..b.md": 1, "deep/er/x.json": 1}, ""),
        (GOOD | {"/etc/x.json": 3}, "names a file outside of its directory ('/etc/x.json')"),
        (GOOD | {"a/../../x": 3}, "names a file outside of its directory"),
        (GOOD | {"..\\x": 3}, "names a file outside of its directory"),
        (GOOD | {"a\nb.json": 3}, "names a file outside of its directory"),
        (GOOD | {"": 3}, "names a file outside of its directory"),
        ({"config.json": 1, "tokenizer.json": 1}, "has no weights in safetensors"),
        ({"config.json": 1, "tokenizer.json": 1, "x.pt": 1}, "only pickles (x.pt), which"),
        ({"config.json": 1, "model.safetensors": 1}, "has no tokenizer.json"),
        ({"tokenizer.json": 1, "model.safetensors": 1}, "has no config.json"),
        ({"adapter_config.json": 1, "adapter_model.safetensors": 1}, "is an adapter"),
        (GOOD | {"vocab.json": 2**40}, "more than the 268,435,456 that are read"),
    ],
)
def test_what_a_hub_lists_is_a_model_or_a_reason(listed: dict[str, int], said: str) -> None:
    assert said in misfit(listed) and bool(said) == bool(misfit(listed))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"listed": {"../../x.json": 3}}, "names a file outside of its directory ('../../x.json')"),
        ({"listed": {SHARD: BYTES + 1}}, "by its own header: it is damaged there"),
        ({"listed": {SHARD: 2**60}}, "by its own header: it is damaged there"),
        ({"listed": {"config.json": 7}}, "has 7 bytes by the hub's list, and"),
        ({"served": {"config.json": b"{}"}}, "does not answer as it should"),
        ({"served": {SHARD: b"\xff" * 40}}, "is not safetensors: its header has no end"),
        ({"served": {SHARD: b"\x08" + bytes(40)}}, "is not safetensors: its header cannot be read"),
        ({"etags": {"config.json": "../../../../../planted"}}, "has no tag to store it under"),
        ({"commit": "../../../planted"}, "names no commit for it"),
    ],
)
def test_a_repository_that_cannot_be_used_is_a_sentence_and_writes_nothing_else(
    inside: None, hub: HubDouble, tmp_path: Path, change: dict[str, object], said: str
) -> None:
    for name, value in change.items():
        setattr(hub, name, value)
    sentence = refusal()
    assert said in sentence, sentence
    assert {path.name for path in tmp_path.iterdir()} <= {"home"}
    assert {path.name for path in (tmp_path / "home").glob("*")} <= {"hub"}
    assert not list(tmp_path.glob("home/**/*.bin")) and not list(tmp_path.glob("home/**/*.py"))


@pytest.mark.explore
def test_more_bytes_than_are_listed_end_the_download(
    hub: HubDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a hub that says so at the last moment: the disk is not filled."""
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    hub.served["merges.txt"], hub.files["merges.txt"] = bytes(2**27), b"1"
    sentence = refusal()
    assert "merges.txt" in sentence or "more comes than" in sentence or "as it should" in sentence
    held = sum(path.lstat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert held < 2**27 and not list(tmp_path.rglob("*.incomplete"))


def test_a_look_that_fails_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A machine without a free descriptor still refuses what the hub has not listed."""
    looks = iter([0, OSError(errno.EMFILE, "Too many open files"), 2**40])

    def held(_: Path) -> int:
        if isinstance(found := next(looks), OSError):
            raise found
        return found

    said: list[object] = []
    monkeypatch.setattr(hub_process, "_held", held)
    monkeypatch.setattr(hub_process, "LOOK_S", 0.0)
    monkeypatch.setattr(hub_process, "answer", said.append)
    monkeypatch.setattr(hub_process, "_end", lambda _: sys.exit())
    with pytest.raises(SystemExit):
        hub_process._watch(tmp_path, 1, threading.Event(), told=False)
    assert "of which more comes" in str(said)


def test_a_disk_without_room_is_asked_before_a_download(
    inside: None, hub: HubDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(free=2**19)
    monkeypatch.setattr(hub_models.shutil, "disk_usage", lambda _: free)
    said = "whose download takes 512.2 KiB, and the disk of"
    with named_models() as named, pytest.raises(ConfigError, match=said):
        named.find(config(), None)
    assert said in refusal() and hub.sent < 2 * (BYTES + 2**15) * 2


def test_a_run_keeps_its_commit(inside: None, hub: HubDouble, tmp_path: Path) -> None:
    """A resume uses it whatever the name means by now, from any cache, and says if it is gone."""
    run = tmp_path / "run"
    first = with_directories(config("run.dir=run"))
    run.mkdir()
    configuration.write(preflight.resolved(first, None, datetime(2026, 1, 2)), run / "run.toml")
    hub.commit = "f" * 40
    for named_as in ("org/name", "org/name@main"):
        with named_models() as named:
            again = named.find(load(None, [f"model.path={named_as}"], {}), run)
            assert again.model.path == first.model.path
            assert "the commit that the run began with" in named.rows[-1].meaning
    with named_models() as named:  # without a resume it is the newest
        assert of_snapshot(named.find(config(), None).model.path).revision == "f" * 40
    moved = tmp_path / "home/hub"
    moved.rename(tmp_path / "home/moved")
    hub.commit = COMMIT
    again = with_directories(configuration.read(run / "run.toml"))
    assert again.model.path == str(snapshot(tmp_path)) and (snapshot(tmp_path) / SHARD).exists()
    shutil.rmtree(moved)
    hub.commit = "f" * 40
    with named_models() as named, pytest.raises(ConfigError) as caught:
        named.find(configuration.read(run / "run.toml"), run)
    assert f"model.path is 'org/name@{COMMIT}', and neither the cache" in str(caught.value)


def test_a_directory_wins_over_a_name_and_a_path_is_no_name(hub: HubDouble, tmp_path: Path) -> None:
    (tmp_path / "org/name").mkdir(parents=True)
    with named_models() as named:
        assert named.find(config(), None).model.path == "org/name" and not named.missing
        (note,) = named.rows
        assert "the directory ./org/name is taken" in note.meaning
    assert model_directory(Path("org/other")) == Path("org/other")
    for path in ("./org/other", "../x", "/org/other", "a/b/c", "other", "org/na\nme", "a/b@"):
        assert model_directory(path) == Path(path)
        with pytest.raises(ConfigError, match=r"no such directory; give a .* \(org/name, or org/"):
            check_directory("model.path", Path(path))
    assert not hub.seen


def test_every_setting_that_names_a_model_may_name_one_of_a_hub(
    inside: None, hub: HubDouble, tmp_path: Path
) -> None:
    """A policy that a server scores with needs no weights here."""
    teacher = ["teacher.path=org/name", "teacher.coefficient=0.1"]
    reference = ["reference.path=org/name", "reference.coefficient=0.1"]
    with named_models() as named:
        found = named.find(load(None, teacher + reference, {}), None)
        assert {row.name for row in named.rows} == {"reference.path", "teacher.path"}
        assert found.model.path == "" and found.reference.path == found.teacher.path
    shutil.rmtree(tmp_path / "home")
    hub.seen.clear()
    with named_models() as named:
        found = named.find(load(None, [*teacher, "teacher.server=http://x:1"], {}), None)
        assert Path(found.teacher.path) == snapshot(tmp_path) and not named.missing
        assert not hub.asked_for(SHARD) and not (snapshot(tmp_path) / SHARD).exists()


@pytest.mark.explore
def test_a_command_says_one_sentence_and_ends_with_2(hub: HubDouble, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "asyncrl", "train", "--set", "model.path=org/none"]
    done = subprocess.run(argv, capture_output=True, text=True, env=os.environ)
    said = f"asyncrl: model.path is 'org/none', which is no directory here, and the hub {hub.url}"
    assert done.returncode == 2 and done.stderr.startswith(said), done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout
    assert {path.name for path in tmp_path.iterdir()} <= {"home"}
