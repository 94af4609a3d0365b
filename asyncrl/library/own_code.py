"""Code that `asyncrl.train` is given as objects: by the names of modules where other processes find
those, and else by its source, in the folder `code` of the run.

Invariant: an object given by keyword ends as the value of one setting, so that a run of a notebook
is described by its run.toml as every other run. What lies in `code` is the session's own: a resume
is told it again, and never runs what it finds there unasked.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from asyncrl.config import Config, ConfigError
from asyncrl.config.fields import FIELDS, lookup
from asyncrl.config.own_files import imported, split
from asyncrl.config.setting import checked, quoted
from asyncrl.files import read_regular, write_whole
from asyncrl.library.kept_code import SETTINGS
from asyncrl.library.own_source import is_of_session, module_text, modules_used, refuse_unnameable
from asyncrl.library.task import ListTask
from asyncrl.own_folder import own_folder
from asyncrl.runtime.processes.process import isolated
from asyncrl.runtime.run_dir import CODE
from asyncrl.staleness.corrections import Correction

Corrections = type[Correction] | Correction
FILE_BYTES = 16 * 2**20
LOOK_S = 60.0
"""Seconds in which a new Python says which modules it finds."""


class OwnCode(NamedTuple):
    """Code that a run is given: `files` of its folder `code`, by their names, and the `settings`
    that name objects, by key: a function of the folder, since that may not be known yet."""

    files: dict[str, str]
    settings: dict[str, Callable[[Path], Any]]

    def configured(self, config: Config, run: Path) -> Config:
        """The configuration with these settings, for a run in the directory `run`, where the files
        lie already. Raises ConfigError."""
        for key, value_in in self.settings.items():
            field = FIELDS[key]
            value = checked(field, value_in(run / CODE), "train")
            section = msgspec.structs.replace(lookup(config, field.section), **{field.name: value})
            config = msgspec.structs.replace(config, **{field.section: section})
        return config

    def named(self, config: Config) -> Config:
        """The configuration with the name of its task, which names the run."""
        if (value_in := self.settings.get("task.name")) is None:
            return config
        task = msgspec.structs.replace(config.task, name=f":{value_in(Path()).rpartition(':')[2]}")
        return msgspec.structs.replace(config, task=task)

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each file, in hex."""
        return {
            name: hashlib.sha256(text.encode()).hexdigest() for name, text in self.files.items()
        }

    @contextmanager
    def written(self, run: Path) -> Iterator[list[str]]:
        """Write the files to a run's directory, which is made if it is not there. Yields the names
        of those that had another text before. If the block raises, what was there before is there
        again."""
        made = [path for path in (run, *run.parents) if not path.exists()] if self.files else []
        before = {name: _text(run / CODE / name) for name in self.files}
        had_folder = (run / CODE).is_dir()
        try:
            for name, text in self.files.items():
                (run / CODE).mkdir(parents=True, exist_ok=True, mode=0o700)
                write_whole(run / CODE / name, text)
                sys.modules.pop(str(run / CODE / name), None)  # an earlier text of it
            yield [name for name, old in before.items() if old not in (None, self.files[name])]
        except BaseException:
            for name, old in before.items():
                sys.modules.pop(str(run / CODE / name), None)
                with suppress(OSError):
                    if old is None:
                        (run / CODE / name).unlink()
                    else:
                        write_whole(run / CODE / name, old)
            with suppress(OSError):
                if self.files and not had_folder:
                    shutil.rmtree(run / CODE)
                for path in made:  # only what is empty goes
                    path.rmdir()
            raise


def for_this_process(config: Config, given: Mapping[str, Any]) -> Config:
    """The configuration with objects by keyword, for a loop in this process: code that is written
    to files is imported from them, and they are removed. Raises ConfigError."""
    code = own_code(config, given)
    with own_folder("code") as folder:
        with code.written(folder):
            config = code.configured(config, folder)
            for file in code.files:
                imported(str(folder / CODE / file))
        return config


def own_code(config: Config, given: Mapping[str, Any], *, resumes: bool = False) -> OwnCode:
    """Take objects by keyword (those of SETTINGS; None is none). Raises ConfigError for one that no
    other process can have, and where a new run's configuration names another one."""
    code = OwnCode({}, {})
    for keyword, thing in given.items():
        if thing is None:
            continue
        key = SETTINGS[keyword]
        _refuse_second(config, keyword, key, resumes=resumes)
        if keyword == "correction":
            code.settings[key] = _corrections(code, thing)
        else:
            code.settings[key] = _named(code, keyword, keyword, thing)
    return code


def _refuse_second(config: Config, keyword: str, key: str, *, resumes: bool) -> None:
    value = lookup(config, key)
    if not resumes and value != lookup(Config(), key):
        shown = [one.kind for one in value] if key == "staleness.correction" else value
        raise ConfigError(
            f"train: {keyword} is given, and {key} is {quoted(shown)} in the configuration: give "
            "one of them."
        )


def _corrections(code: OwnCode, thing: Any) -> Callable[[Path], list[dict[str, Any]]]:
    """The tables of one correction or several, in their order."""
    listed = thing if isinstance(thing, list | tuple) else [thing]
    tables = [
        _correction(code, f"correction_{number}" if number > 1 else "correction", one)
        for number, one in enumerate(listed, 1)
    ]
    return lambda folder: [table(folder) for table in tables]


def _correction(code: OwnCode, file: str, thing: Any) -> Callable[[Path], dict[str, Any]]:
    """The table of a correction: a class, or an object, whose fields are its settings."""
    kind = type(thing) if isinstance(thing, Correction) else thing
    fields = msgspec.structs.asdict(thing) if isinstance(thing, Correction) else {}
    if isinstance(kind, type) and vars(kind).get("kind", ":").isidentifier():
        named = str(vars(kind)["kind"])  # one of asyncrl's own
        return lambda folder: {"kind": named, **fields}
    name_in = _named(code, "correction", file, kind)
    return lambda folder: {"kind": name_in(folder), **fields}


def _named(code: OwnCode, keyword: str, file: str, thing: Any) -> Callable[[Path], str]:
    """The name of an object in a setting; its source becomes a file where it has no other."""
    if isinstance(thing, str):
        raise ConfigError(
            f"train: {keyword} is the text {quoted(thing)}, and takes an object: a name belongs "
            f"into the settings, as {SETTINGS[keyword]}."
        )
    if keyword == "task" and isinstance(thing, ListTask):
        return _listed(code, thing)
    refuse_unnameable(keyword, thing)
    if not is_of_session(thing):
        name = _name_of(keyword, thing)
        return lambda folder: name
    unseen = _unseen(keyword, modules_used(keyword, thing))
    text = module_text(keyword, thing, unseen)
    code.files[f"{file}.py"] = text
    name = thing.__name__
    return lambda folder: f"{folder / f'{file}.py'}:{name}"


def _listed(code: OwnCode, task: ListTask) -> Callable[[Path], str]:
    """The name of the class of a list of lines, which go into a file beside it."""
    judge = task.function
    refuse_unnameable("the verifier of the task", judge)
    try:
        code.files["task.json"] = json.dumps(task.lines, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"train: the lines of the task are not JSON ({error}): put text, finite numbers, lists "
            "and dicts into them."
        ) from None
    if is_of_session(judge):
        role = "the verifier of the task"
        text = module_text(role, judge, _unseen(role, modules_used(role, judge)))
        code.files["task.py"] = f"{text}\n\n{_LISTED.format(judge=judge.__name__)}"
    else:
        loaded = f"load_named({_name_of('the verifier of the task', judge)!r}, 'verifier')"
        head = "from asyncrl.config.plugins import load_named\n\n\n"
        code.files["task.py"] = f"{head}{_LISTED.format(judge=loaded)}"
    return lambda folder: f"{folder / 'task.py'}:ListedLines"


_LISTED = """\
import json
from pathlib import Path

from asyncrl.tasks.own_task import RowTask
from asyncrl.tasks.reward_forms import as_verifier

_JUDGE = as_verifier({judge})


class ListedLines(RowTask):
    executes = getattr(_JUDGE, "executes", False)
    rewards = getattr(_JUDGE, "rewards", None)

    def __init__(self):
        self.lines = json.loads(Path(__file__).with_name("task.json").read_text())

    def rows(self):
        return self.lines["train"]

    def evaluation_rows(self):
        return self.lines["evaluation"]

    def verify(self, answer, row):
        return _JUDGE(answer, row)
"""


def _name_of(keyword: str, thing: Any) -> str:
    """`module:name` of an object of a module, or `file:name` where a run does not find that."""
    module, name = thing.__module__, thing.__qualname__
    if getattr(sys.modules.get(module), name, None) is not thing:
        raise ConfigError(
            f"train: {keyword} says that it is {name} of {module}, which has another one or none: "
            "give an object that its module has by its name."
        )
    file = _unseen(keyword, {module}).get(module)
    return f"{file}:{name}" if file else f"{module}:{name}"


def _unseen(keyword: str, modules: set[str]) -> dict[str, str]:
    """The files of those modules that a process of a run does not find, or finds elsewhere: the
    folder of a script or of a notebook is not searched there. Raises ConfigError for a module that
    has no file of its own."""
    asked = {
        name: str(file)
        for name in modules
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "asyncrl"}
        and split(f"{name}:x") is None  # a file is found as it is
        and (file := getattr(sys.modules.get(name), "__file__", None))
    }
    if not asked:
        return {}
    done = subprocess.run(
        [sys.executable, "-c", _FINDS, *asked],
        env=isolated(os.environ),
        capture_output=True,
        text=True,
        timeout=LOOK_S,
        check=False,
    )
    found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    unseen = {name: file for name, file in asked.items() if found.get(name) != file}
    for name, file in unseen.items():
        if "." in name or not file.endswith(".py") or Path(file).name == "__init__.py":
            folder = Path(file).parents[name.count(".") + (Path(file).name == "__init__.py")]
            raise ConfigError(
                f"train: {keyword} uses the package {name.partition('.')[0]}, which processes of a "
                f"run do not find: put {folder} on PYTHONPATH before Python starts, or install it."
            )
    return unseen


_FINDS = """\
import contextlib, importlib.util, json, sys
found = {}
for name in sys.argv[1:]:
    with contextlib.suppress(Exception):
        found[name] = importlib.util.find_spec(name).origin
print(json.dumps(found))
"""


def _text(path: Path) -> str | None:
    try:
        return read_regular(path, FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return None
