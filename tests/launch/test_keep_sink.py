"""The launcher's part of a run's sinks: what is refused before it starts, and a process for each,
which is fed to the end, and missed where it fails."""

from __future__ import annotations

import errno
import re
import sys
from pathlib import Path

import msgspec
import pytest
import trio
from look_support import step
from train_support import wait_for

from asyncrl.config import ConfigError, load, render
from asyncrl.explain.curve import line_of
from asyncrl.explain.sinks import sink
from asyncrl.explain.sinks.sink import refuse_unfit_sinks
from asyncrl.explain.sinks.sink_feed import SinkNote
from asyncrl.launch.sinks import keep_sink
from asyncrl.runtime.run_dir import METRICS, RUN_TOML, SINKS

PATIENCE_S = 120.0


def new_run(run: Path) -> Path:
    (run / "logs").mkdir(parents=True)
    (run / RUN_TOML).write_text(render(load(None, [f"run.dir={run}"], {})))
    (run / METRICS).write_bytes(line_of(step(1)))
    return run


def sent(run: Path) -> int:
    path = run / SINKS / "tensorboard.json"
    return msgspec.json.decode(path.read_bytes(), type=SinkNote).step if path.exists() else 0


async def test_a_sink_that_cannot_be_started_is_said_and_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    said = list[str]()
    for what in ("spawn", "os.pipe"):
        monkeypatch.setattr(f"asyncrl.launch.sinks.{what}", full)
        await keep_sink(new_run(tmp_path / what), "tensorboard", trio.Event(), said.append)
        monkeypatch.undo()
    assert len(said) == 2 and all("Too many open files" in line for line in said)


@pytest.mark.processes
async def test_a_sink_is_fed_until_the_run_is_over(tmp_path: Path) -> None:
    run, over, said = new_run(tmp_path / "run"), trio.Event(), list[str]()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_sink, run, "tensorboard", over, said.append)
            await trio.to_thread.run_sync(wait_for, "a point that was sent", lambda: sent(run))
            with (run / METRICS).open("ab") as file:
                file.write(line_of(step(2)))
            over.set()  # at once: what came last is sent all the same
    assert sent(run) == 2
    assert all("Sending the last figures" in line for line in said)


@pytest.mark.explore
@pytest.mark.processes
async def test_a_sink_that_fails_is_said_and_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, said = new_run(tmp_path / "run"), list[str]()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "what://is/this")
    with trio.fail_after(PATIENCE_S):
        await keep_sink(run, "mlflow", trio.Event(), said.append)
    assert re.fullmatch(
        r"The sink mlflow ended with exit code 1 \(KeyError: 'what'\), and the run is without "
        r"it: see .*mlflow-0\.log\.",
        said[0],
    )


@pytest.mark.processes
async def test_a_sink_that_does_not_end_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, over, said = new_run(tmp_path / "run"), trio.Event(), list[str]()
    program = tmp_path / "stuck"
    program.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(1000)\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    over.set()
    with trio.fail_after(PATIENCE_S):
        await keep_sink(run, "wandb", over, said.append, limit_s=0.5)
    assert said[0].startswith("Sending the last figures to wandb, for 0.5 s at most")
    assert said[1].startswith("The sink wandb had not sent everything in 0.5 s: see ")


def test_what_a_sink_needs_is_asked_for_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MLFLOW_TRACKING_URI", "WANDB_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    refuse_unfit_sinks(("tensorboard",))
    with pytest.raises(ConfigError, match="'tensorboard' twice"):
        refuse_unfit_sinks(("tensorboard", "tensorboard"))
    with pytest.raises(ConfigError, match="W&B knows no key here: run `wandb login`, set "):
        refuse_unfit_sinks(("wandb",))
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_URI is not set: give the address"):
        refuse_unfit_sinks(("mlflow",))
    monkeypatch.setattr(sink, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=r"pip install 'asyncrl\[tensorboard\]'"):
        refuse_unfit_sinks(("tensorboard",))
    monkeypatch.undo()
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    refuse_unfit_sinks(("wandb", "mlflow"))


@pytest.mark.parametrize("said", ["wandb,tensorboard", '["wandb", "tensorboard"]'])
def test_sinks_are_words_with_commas_or_a_list(said: str) -> None:
    assert load(None, [f"run.sinks={said}"], {}).run.sinks == ("wandb", "tensorboard")
    assert load(None, ["run.sinks="], {}).run.sinks == ()
    with pytest.raises(ConfigError, match=r"\['wandbx'\], and must be a list of tensorboard, wand"):
        load(None, ["run.sinks=wandbx"], {})
