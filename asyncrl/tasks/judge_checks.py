"""Checks of a machine that will judge a task's answers: it can open the task, from the same files,
and has the sandbox that the verifiers need. Invariant: two machines that pass give an answer the
same verdict, as far as files and versions decide it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from asyncrl.config.errors import ConfigError
from asyncrl.config.mix import each, named
from asyncrl.config.plugins import module_and_name
from asyncrl.config.schema import TaskConfig
from asyncrl.files import open_regular
from asyncrl.sandbox.programs.bubblewrap import Bubblewrap
from asyncrl.sandbox.programs.languages import trial
from asyncrl.sandbox.support import support
from asyncrl.tasks import Task, TaskError, open_task
from asyncrl.tasks.data.data_digest import data_digest
from asyncrl.words import sentence

GYM = "reasoning-gym"


def opened(config: TaskConfig, seed: int) -> Task:
    """Open the task. Raises ConfigError if it cannot be opened as configured."""
    try:
        return open_task(config, seed)
    except TaskError as error:
        raise ConfigError(sentence(error)) from None


def check_judging(config: TaskConfig, task: Task) -> None:
    """Check that this machine can judge answers to the task. Raises ConfigError."""
    if task.languages:
        _check_programs(config, task)
    else:
        _check_sandbox(config, task.executes)


def origins(config: TaskConfig) -> dict[str, str]:
    """Origins of the task's prompts and verdicts, by name: files and the module or file of a
    verifier with their SHA-256, and reasoning-gym with its version. Machines with the same origins
    judge alike."""
    by_name = dict[str, str]()
    for member in each(config):
        by_name.update(_origins(member))
    return by_name


def _origins(config: TaskConfig) -> Iterator[tuple[str, str]]:
    if ":" in config.name:
        yield _module(config.name)
        return
    if not config.reads_data:
        try:
            yield GYM, version(GYM)
        except PackageNotFoundError:
            yield GYM, "none"
        return
    for path in (config.path, config.eval_path):
        if path:
            yield path, data_digest(path)
    if ":" in config.verifier:
        yield _module(config.verifier)


def _module(text: str) -> tuple[str, str]:
    """The module or file of an object that a setting names, in words, and its digest."""
    module, _ = module_and_name(text) or ("", "")
    if "/" in module:
        return module, digest(Path(module))
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # its parent is not a package
        spec = None
    source = spec.origin if spec is not None else None
    return f"the module {module}", digest(Path(source)) if source else "none"


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex; `none` if it cannot be read."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "none"


def differing_origin(theirs: Mapping[str, str], own: Mapping[str, str]) -> str:
    """The first name whose origins differ, in words; empty if all agree.

    >>> differing_origin({"/data/a.jsonl": "12ab"}, {"/data/a.jsonl": "none"})
    '/data/a.jsonl is not there'
    """
    for name, wanted in theirs.items():
        if (digest := own.get(name, "none")) != wanted:
            return f"{name} is not {'there' if digest == 'none' else 'what the launcher has'}"
    return ""


def _check_sandbox(task: TaskConfig, executes: bool) -> None:
    missing = support().missing
    if task.sandbox == "strict" and missing:
        raise ConfigError(
            f"task.sandbox is 'strict', and this machine does not have it ({missing}); allow user "
            "namespaces, or set it to process, which does not confine a verifier (for a task "
            "that executes no answers)."
        )
    if task.sandbox == "process" and executes:
        cure = (
            f"which this machine does not have ({missing}): allow user namespaces, or choose "
            "another task"
            if missing
            else "and it is 'process': set it to strict"
        )
        raise ConfigError(
            f"the verifier of task {named(task)!r} executes what the model answers, and needs "
            f"task.sandbox = 'strict', {cure}."
        )


def _check_programs(config: TaskConfig, task: Task) -> None:
    """Check that answers can run as programs, by running one of each language."""
    if task.executes:
        raise ConfigError(
            f"the verifiers of task {named(config)!r} both execute answers, which needs the "
            "sandbox strict, and run them as programs, which strict does not let them: make two "
            "runs of it."
        )
    if config.sandbox == "strict":
        raise ConfigError(
            "task.sandbox is 'strict', in which no program can be started, and a verifier is "
            "`run`: set it to process. Programs have a sandbox of their own, whatever it is."
        )
    sandbox = Bubblewrap()
    if missing := sandbox.missing():
        raise ConfigError(
            f"a verifier is `run`, and this machine does not have the sandbox of programs "
            f"({missing}); allow user namespaces, or choose another verifier."
        )
    for language in sorted(task.languages):
        if problem := trial(language, sandbox):
            raise ConfigError(
                f"a verifier is `run`, and {problem}; fix it, or leave its lines out."
            )
