"""Settings of tasks that contradict each other, for one task and for each of a mix."""

from __future__ import annotations

from asyncrl.config.judging import asks
from asyncrl.config.mix import each, held_out_size, members
from asyncrl.config.schema import Config, JudgeConfig, TaskConfig
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
    yield from _judge(config)


def _unused_verifiers(task: TaskConfig) -> Contradictions:
    """Contradictions of verifiers that no row of data would use: another one would judge its
    answers."""
    remedy = (
        "data sets of reasoning-gym and classes of your own have verifiers of their own: set name "
        "to data, or remove verifier"
    )
    if task.verifier != TaskConfig().verifier and not any(one.reads_data for one in each(task)):
        yield ("task.name", "task.verifier"), remedy
    for label, member in members(task).items():
        if "verifier" in task.mix[label] and not member.reads_data:
            yield ("task.mix",), f"verifier of the task {label!r}: {remedy}"


def _judge(config: Config) -> Contradictions:
    """Contradictions of a verifier that asks a judge, and of a judge that is not asked."""
    asking = asks(config)
    if asking and not config.judge.url:
        yield (
            ("task.verifier", "judge.url"),
            "there is no judge to ask: give the address of its API in judge.url",
        )
    if config.judge != JudgeConfig() and not asking:
        yield (
            ("judge.url", "task.verifier"),
            "no answer would be given to the judge: set verifier to judge, or remove [judge]",
        )


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
    if task.name == "seeds":
        yield from _of_seeds(config)
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


def _of_seeds(config: Config) -> Contradictions:
    """Contradictions of a task without questions and answers."""
    if not config.agent.run:
        yield (
            ("task.name", "agent.run"),
            "a seed is no question, so only an agent can make one of it: name it in agent.run, or "
            "set another task",
        )
    if not config.model.path and config.model.warmup_steps:
        yield (
            ("task.name", "model.warmup_steps"),
            "the bundled model has no answers to learn from: set model.path, or warmup_steps = 0",
        )
