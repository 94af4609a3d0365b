"""Settings of tasks that contradict each other, for one task and for each of a mix."""

from __future__ import annotations

from asyncrl.config.mix import each, held_out_size, members
from asyncrl.config.schema import Config, TaskConfig
from asyncrl.config.schema.section import Contradictions


def task_contradictions(config: Config) -> Contradictions:
    """Contradictions of each task. The tables of `task.mix` must be valid."""
    if config.evaluation.samples and not held_out_size(config.task):
        yield (
            ("evaluation.samples", "task.eval_size"),
            "no prompt is held out, so there is none to sample: raise eval_size, or set samples "
            "to 0",
        )
    if not config.task.mix:
        yield from _one_task(config, config.task)
    for label, member in members(config.task).items():
        for keys, remedy in _one_task(config, member):
            names = " and ".join(key.removeprefix("task.") for key in keys)
            yield ("task.mix",), f"{names} of the task {label!r}: {remedy}"
    yield from _unused_verifiers(config.task)


def _unused_verifiers(task: TaskConfig) -> Contradictions:
    """Contradictions of verifiers that no row of data would use: another one would judge its
    answers."""
    remedy = (
        "data sets of reasoning-gym have verifiers of their own: set name to data, or remove "
        "verifier"
    )
    if task.verifier != TaskConfig().verifier and not any(one.reads_data for one in each(task)):
        yield ("task.name", "task.verifier"), remedy
    for label, member in members(task).items():
        if "verifier" in task.mix[label] and not member.reads_data:
            yield ("task.mix",), f"verifier of the task {label!r}: {remedy}"


def _one_task(config: Config, task: TaskConfig) -> Contradictions:
    if task.reads_data:
        if not task.path:
            yield ("task.name", "task.path"), "name the data of the prompts in task.path"
        if task.params:
            yield (
                ("task.name", "task.params"),
                "parameters belong to reasoning-gym data sets: remove task.params",
            )
    else:
        for key in ("path", "eval_path", "prompt_key", "answer_key"):
            if getattr(task, key):
                yield (
                    ("task.name", f"task.{key}"),
                    f"files are read when task.name is data: set it, or remove {key}",
                )
    if task.chat and not config.model.path:
        yield (
            ("task.chat", "model.path"),
            "the bundled model has no chat template: set model.path or turn chat off",
        )
    if not task.chat and "{question}" not in task.template:
        yield (
            ("task.template",),
            "the prompt would not contain the question: put {question} in the template",
        )
