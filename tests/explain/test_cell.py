"""The display in a notebook: one output that is replaced, however long the run is."""

from __future__ import annotations

import io
import sys
from types import ModuleType
from typing import Any

import pytest
from look_support import HOSTILE
from rich.console import Console

from asyncrl.explain import cell
from asyncrl.explain.display import Display
from asyncrl.messages import Progress, StatusUpdate


class ZMQInteractiveShell:
    """A kernel's shell, by its name."""


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Messages to a notebook: the kind, and the picture."""
    sent = list[tuple[str, dict[str, Any]]]()

    class Handle:
        def update(self, data: dict[str, Any], *, raw: bool) -> None:
            assert raw
            sent.append(("update", data))

    def display(data: dict[str, Any], *, raw: bool, display_id: bool) -> Handle:
        assert raw and display_id
        sent.append(("display", data))
        return Handle()

    ipython, shown = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    shown.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return sent


def update(step: int, **more: Any) -> StatusUpdate:
    figures: dict[str, Any] = {
        "phase": "training",
        "step": step,
        "steps": 10_000,
        "seconds": 10.0 * step,
        "note": "",
        **dict.fromkeys(("reward", "accuracy", "lag_mean", "pause_seconds")),
        **dict.fromkeys(("idle_trainer", "idle_rollout")),
        **dict.fromkeys(("accuracy_version", "lag_max", "queue_items", "queue_bytes"), 0),
        **dict.fromkeys(("generated_per_s", "trained_per_s"), 0.0),
    }
    return StatusUpdate(**figures | more)


def test_a_long_run_is_one_output_in_a_cell(
    outputs: list[tuple[str, dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cell.in_notebook()
    with Display(cell.console_here()) as display:
        display.progress(Progress("preparing", 1, 4, 20.0))
        for step in range(200):
            display.update(update(step))
        display.note("rollout-0 is started again.")
        display.update(update(200, note=HOSTILE))
    assert [kind for kind, _ in outputs].count("display") == 1 and len(outputs) == 202
    assert {*outputs[-1][1]} == {"text/plain"}
    last = outputs[-1][1]["text/plain"]
    assert "step 200/10000" in last and "\x1b" not in last and "\u202e" not in last
    assert capsys.readouterr().out == "rollout-0 is started again.\n"


def test_elsewhere_it_is_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = ModuleType("IPython")
    for shell in (None, "a terminal's"):
        ipython.get_ipython = lambda shell=shell: shell  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        assert not cell.in_notebook()
    text = io.StringIO()
    with Display(Console(file=text, width=80)) as display:
        for step in range(3):
            display.update(update(step))
    assert len(text.getvalue().splitlines()) == 3
