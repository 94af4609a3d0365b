"""Code of a user's own in a file: `./rewards.py:judge` in a setting, as `module:name` is for what
is on PYTHONPATH. Invariant: only a setting names a file, and no part of a process but that file
sees the folder it lies in.

A path in a setting has a `/` and ends in `.py`; one of run.toml starts from the folder of run.toml,
one of `--set`, a variable or Python from the current directory. A configuration holds it without
its start (`absolute`), so each process of a run, and a resume, finds the same file.

The path is the name of the module, too. So two files of one name are two modules, a class's
`__module__` and its name find it again, and an error names the file. In such a file `import helper`
finds `helper.py` or the package `helper/` beside it, before an installed package of that name, but
never in place of one of Python's own. No folder is put on `sys.path`: a folder of data, named as an
optional package is, would be taken for it anywhere.
"""

from __future__ import annotations

import builtins
import difflib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.abc import SourceLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from asyncrl.config.errors import ConfigError
from asyncrl.config.paths import is_file, shown
from asyncrl.files import read_regular

BYTES = 16 * 2**20
"""Bytes of a file of code, at most."""
_FORM = re.compile(r"(?P<path>[^\0:]*/[^\0:]*\.py):(?P<name>[^:/]+)")
_PACKAGE = "__init__.py"


class NoFile(Exception):
    """There is no file at a path in a setting; the text says what is there, and names the path."""


def split(text: str) -> tuple[str, str] | None:
    """The path and the name of `./file.py:name`; None for any other text.

    >>> split("./rewards.py:judge"), split("rewards:judge")
    (('./rewards.py', 'judge'), None)
    """
    form = _FORM.fullmatch(text)
    return (form["path"], form["name"]) if form and form["name"].isidentifier() else None


def absolute(text: str, folder: Path | None = None) -> str:
    """`./file.py:name` with the whole path of the file, which starts from `folder`, or the current
    directory; any other text as it is.

    >>> absolute("../mine.py:judge", Path("/runs/a"))
    '/runs/mine.py:judge'
    >>> absolute("exact", Path("/runs/a"))
    'exact'
    """
    if (parts := split(text)) is None:
        return text
    path, name = parts
    start = os.path.abspath(folder or "")  # noqa: PTH100  # it follows no links
    whole = os.path.join(start, os.path.expanduser(path))  # noqa: PTH111, PTH118
    return f"{os.path.normpath(whole)}:{name}"


def located(value: Any, folder: Path | None = None) -> Any:
    """A setting that may name code, with each `./file.py:name` in it absolute: a text, several with
    commas between them, or lists and tables of texts.

    >>> located({"sums": {"verifier": "./mine.py:judge", "eval_size": 8}}, Path("/runs/a"))
    {'sums': {'verifier': '/runs/a/mine.py:judge', 'eval_size': 8}}
    """
    return _changed(value, partial(absolute, folder=folder))


def from_folder(value: Any, folder: Path) -> Any:
    """A setting that may name code, with each file that lies in `folder` named from there: the
    inverse of `located`, so that the folder may be moved.

    >>> from_folder(["/runs/a/code/mine.py:judge", "/other.py:judge"], Path("/runs/a"))
    ['./code/mine.py:judge', '/other.py:judge']
    """

    def changed(text: str) -> str:
        parts = split(text)
        if parts is None or not Path(parts[0]).is_relative_to(folder):
            return text
        return f"./{Path(parts[0]).relative_to(folder)}:{parts[1]}"

    return _changed(value, changed)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """A setting with each text in it changed that may name code."""
    if isinstance(value, str) and "," in value:
        parts = [part.strip() for part in value.split(",")]
        return ", ".join(map(change, parts)) if any(map(split, parts)) else value
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_changed(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _changed(item, change) for key, item in value.items()}
    return value


def suggested(value: Any, folder: Path) -> tuple[str, str]:
    """A `module:name` in a setting that Python cannot find, and the `./file.py:name` of its file in
    `folder`; two empty texts if there is none. Imports nothing.

    >>> suggested("asyncrl:train", Path("/"))
    ('', '')
    """
    if isinstance(value, list | tuple | dict):
        inner = value.values() if isinstance(value, dict) else value
        found = (suggested(item, folder) for item in inner)
        return next(filter(any, found), ("", ""))
    if not isinstance(value, str) or split(value):
        return "", ""
    module, _, name = value.partition(":")
    parts = module.removesuffix(".py").split(".")
    if not all(part.isidentifier() for part in (*parts, name)):
        return "", ""
    path = "/".join(parts) + ".py"
    try:
        there = is_file(folder / path)
        known = not module.endswith(".py") and find_spec(parts[0]) is not None
    except (ConfigError, ImportError, ValueError):
        return "", ""
    return (value, f"./{path}:{name}") if there and not known else ("", "")


def imported(path: str) -> ModuleType:
    """The module of a file, which is read and run once in a process. Raises NoFile if there is
    none, and what its code raises."""
    path = os.path.abspath(path)  # noqa: PTH100
    if (known := sys.modules.get(path)) is not None:
        return known
    try:
        there = is_file(Path(path))
    except ConfigError as error:
        raise NoFile(str(error).partition(";")[0]) from None
    if not there:
        raise NoFile(f"{shown(path)} {_missing(Path(path))}")
    return _loaded(path, Path(path))


def _missing(path: Path) -> str:
    """The reason why a path is no file, and the nearest that is one."""
    if path.exists():
        return "is no regular file"
    beside = [other.name for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside, n=1)
    return f"is not there{f'; the nearest is {near[0]}' if near else ''}"


def _loaded(name: str, file: Path, search: Sequence[str] | None = None) -> ModuleType:
    """The module called `name` of a file; `search` are the folders of a package."""
    spec = spec_from_file_location(
        name,
        file,
        loader=_FileLoader(file, _beside(file.parent if search is None else file.parent.parent)),
        submodule_search_locations=None if search is None else list(search),
    )
    assert spec is not None and spec.loader is not None  # a loader was given
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


class _FileLoader(SourceLoader):
    """Reads a file each time, without a copy of its bytecode, which may be of an older text; its
    module imports by `importing`."""

    def __init__(self, file: Path, importing: Callable[..., Any]) -> None:
        self._file = file
        self._importing = importing

    def get_filename(self, fullname: str) -> str:
        return str(self._file)

    def get_data(self, path: str | bytes) -> bytes:
        return read_regular(Path(os.fsdecode(path)), BYTES)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._importing}
        super().exec_module(module)


def _beside(folder: Path) -> Callable[..., Any]:
    """The function that carries out `import` for the files of a folder: first it looks there."""

    def importing(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        first, _, rest = name.partition(".")
        own = None if level or first in _RESERVED else _own(folder, first)
        if own is None:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if not rest and (not fromlist or not hasattr(own, "__path__")):
            return own
        found = builtins.__import__(
            f"{own.__name__}.{rest}" if rest else own.__name__,
            globals,
            locals,
            fromlist or ("__name__",),
        )
        return found if fromlist else own

    return importing


_RESERVED = sys.stdlib_module_names | {"asyncrl"}
"""First names of modules that no file in a folder of a user's replaces."""


def _own(folder: Path, name: str) -> ModuleType | None:
    """The module of a file or a package in a folder; None if there is none of this name."""
    package, file = folder / name / _PACKAGE, folder / f"{name}.py"
    if package.is_file():
        known = sys.modules.get(str(package.parent))
        return known or _loaded(str(package.parent), package, [str(package.parent)])
    if file.is_file():
        return sys.modules.get(str(file)) or _loaded(str(file), file)
    return None
