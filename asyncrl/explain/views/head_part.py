"""The head of a run's page: its name, task and model, how it stands, in a word with a colour, and
how far it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from asyncrl.config.model_names import said
from asyncrl.explain.run_list import devices
from asyncrl.explain.views.html_page import Html, joined, tag
from asyncrl.explain.views.seen_run import SeenRun, moment
from asyncrl.explain.why import OLD_S
from asyncrl.words import NONE, clock, count, duration

BUNDLED = "bundled small model"


def head(seen: SeenRun) -> Html:
    """The head, for which the files of the run must be readable. Raises ConfigError."""
    word, colour = state(seen)
    facts = [item for name, text in _facts(seen) for item in (tag("dt", name), tag("dd", text))]
    return joined(
        tag(
            "div",
            tag("h1", seen.files.path.absolute().name),
            tag("span", word, class_=f"pill {colour}"),
            tag("dl", *facts, class_="facts"),
            class_="title",
        ),
        _progress(seen),
    )


def state(seen: SeenRun) -> tuple[str, str]:
    """The state of the run in a word or two, and its colour: `good`, `works`, `warns` or `bad`.
    Raises ConfigError."""
    status = seen.live
    if status is not None:
        if seen.now - status.at > OLD_S:
            return "silent", "warns"
        if status.evaluating is not None and status.phase == "run":
            return f"evaluating version {status.evaluating}", "works"
        words = {"run": "training", "drain": "stopping", "stop": "stopping"}
        return words.get(status.phase, "starting"), "works"
    last = seen.status
    if seen.standing == "ended" and last is not None and last.step < last.steps:
        return "ended early", "warns"
    return {
        "begins": ("starting", "works"),
        "ended": ("finished", "good"),
        "failed": ("failed", "bad"),
        "stalled": ("stalled", "bad"),
        "killed": ("killed", "bad"),
    }.get(seen.standing, (seen.standing, "warns"))


def _facts(seen: SeenRun) -> Iterator[tuple[str, str]]:
    task, model = task_and_model(seen.files.settings)
    yield "task", task
    yield "model", model
    if (start := seen.files.start) is not None:
        yield "host", start.host
    if (status := seen.status) is not None:
        yield "started", moment(status.at - status.seconds)
        if seen.standing != "goes on":
            yield "last seen" if seen.standing == "killed" else "ended", moment(status.at)


def task_and_model(settings: Mapping[str, Any]) -> tuple[str, str]:
    """The task and the model that settings name, for people.

    >>> task_and_model({"task.name": "data", "task.path": "sums.jsonl", "model.path": ""})
    ('data sums.jsonl', 'bundled small model')
    """
    task = str(settings.get("task.name") or NONE)
    if path := settings.get("task.path"):
        task = f"{task} {path}"
    return task, said(str(settings.get("model.path") or "")) or BUNDLED


def _progress(seen: SeenRun) -> Html:
    """Steps of those to make, time, and an estimate of what is left from the last steps."""
    status, figures, curves = seen.status, seen.figures, seen.curves
    step = max(figures.step, status.step if status is not None else 0)
    steps = status.steps if status is not None else 0
    said = [f"step {count(step)} of {count(steps)}" if steps else f"step {count(step)}"]
    said.append(f"{clock(figures.seconds)} worked" if figures.seconds else "no step yet")
    if status is not None and figures.seconds and (used := devices(status)):
        said.append(f"{clock(figures.seconds * used)} of device time")
    left_s = curves.left_s(step, steps, seen.now) if seen.live is not None else None
    if left_s is not None:
        said.append(f"about {clock(left_s)} left")
        said.append(f"{duration(left_s / (steps - step))} a step lately")
    elif seen.live is None and status is not None and status.reason:
        said.append(status.reason)
    bar = []
    if steps:
        bar = [
            tag(
                "progress",
                value=min(step, steps),
                max=steps,
                aria_label=f"step {step} of {steps}",
            )
        ]
    return tag("div", *bar, tag("p", " · ".join(said)), class_="progress")
