"""A process that has imported the product, and forks one in which it is broken for each line of its
standard input: a request in JSON, with a `folder` that has the `files` of the product that a patch
changed. An empty line says that the fork has ended; what it found is in the folder's file `shown`.

What differs within functions replaces their code in place, because importing the product again
takes half a second, and most seeds a tenth. What differs elsewhere (`Elsewhere`), or is not shown
by the seeds that way, is imported from the folder, if that has the product `whole`.

    python planted_server.py SECONDS PACKAGE …
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import asyncrl.simulation.run as world

Place = tuple[str, str, int]
"""Of a function: its file, its qualified name, and its first line."""


class Elsewhere(Exception):
    """Something other than the code of functions differs."""


def place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def functions() -> dict[Place, list[FunctionType]]:
    """All functions that there are."""
    found = defaultdict[Place, list[FunctionType]](list)
    for each in gc.get_objects():
        if isinstance(each, FunctionType):
            found[place(each.__code__)].append(each)
    return found


def changes(old: CodeType, new: CodeType) -> Iterator[tuple[Place, CodeType]]:
    """The functions whose code differs. Raises Elsewhere."""
    if old == new:
        return
    if old.co_flags & CO_NEWLOCALS:
        if shape(old) != shape(new):
            raise Elsewhere(old.co_qualname)
        yield place(old), new
    elif (old.co_code, old.co_names) != (new.co_code, new.co_names):
        raise Elsewhere(old.co_qualname)
    for one, other in zip(old.co_consts, new.co_consts, strict=False):
        if isinstance(one, CodeType) and isinstance(other, CodeType):
            yield from changes(one, other)
        elif not old.co_flags & CO_NEWLOCALS and (type(one), one) != (type(other), other):
            raise Elsewhere(old.co_qualname)


def shape(code: CodeType) -> tuple[Any, ...]:
    """Parts of a function's code that its callers and its closure depend on."""
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return code.co_qualname, code.co_flags, counts, arguments, code.co_freevars


def break_in_place(folder: Path, files: Sequence[str], known: dict[Place, list[Any]]) -> None:
    """Give functions of these files the code that they have in the folder. Raises Elsewhere."""
    root = Path(world.__file__).parents[2]
    named = {
        os.path.realpath(module.__file__): module.__file__
        for module in [*sys.modules.values()]
        if getattr(module, "__file__", None)
    }
    for file in files:
        path = named[os.path.realpath(root / file)]
        old, new = (
            compile((where / file).read_text(), path, "exec", dont_inherit=True)
            for where in (root, folder)
        )
        for where, code in changes(old, new):
            for function in known.get(where, ()):
                function.__code__ = code


def show(request: dict[str, Any], known: dict[Place, list[Any]], packages: Sequence[str]) -> str:
    """Words on what the seeds show of the bug."""
    folder, found = request["folder"], world
    if request["whole"]:
        for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
            del sys.modules[name]
        sys.path.insert(0, folder)
        found = importlib.import_module("asyncrl.simulation.run")
        assert found.__file__ and found.__file__.startswith(folder), found
    else:
        break_in_place(Path(folder), request["files"], known)
    for seed in request["seeds"]:
        if (violation := getattr(found, request["run"])(seed).violation) is not None:
            return f"seed {seed} violates {violation}"
    return f"no seed of {len(request['seeds'])} shows it"


def main() -> None:
    limit_s, *packages = sys.argv[1:]
    known = functions()
    gc.collect()
    gc.freeze()  # the collector would look through all of it in each fork
    for line in sys.stdin:
        request = json.loads(line)
        with Path(request["folder"], "shown").open("w") as out:
            if not os.fork():
                signal.alarm(int(limit_s))  # a bug that hangs ends, and the next one is tried
                os.dup2(out.fileno(), 2)
                print(show(request, known, packages), file=out, flush=True)
                os._exit(0)
        os.wait()
        print(flush=True)


if __name__ == "__main__":
    main()
