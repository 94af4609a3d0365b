"""Verifiers of JSONL lines. Invariant: data never chooses code, and all answers to a line get the
same rewards by name.

`task.verifier` in run.toml names a built-in verifier, or a function of a module. A line may name a
built-in one, the function that `task.verifier` names, and what its module offers to lines by a
mapping:

    VERIFIERS = {"half": half, "judge": judge}

A line says `"verifier": "mine:half"` then. Everything else is refused, so that a downloaded file
cannot run other code: neither another module, nor the rest of this one.

A function that executes answers as code declares it by an attribute: `judge.executes = True`. Then
each answer is judged in a fresh process of the sandbox `strict`.

`run` executes nothing: it starts answers as programs, each in a sandbox of its own
(`program_cases.py`).

A function that gives several rewards has their names in an attribute, and returns a mapping of all
of them:

    def judge(answer, line):
        return {"right": float(answer.strip() == line["answer"]), "brief": 0.2 * (len(answer) < 40)}

    judge.rewards = ("right", "brief")

The names are declared, and not taken from the first answer: answers are judged in many processes,
before and after a resume, and the rewards of a group are compared name by name. Another function
may have other names.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.config.errors import ConfigError
from asyncrl.config.plugins import Registry, in_folder, module_and_name, reason
from asyncrl.tasks import TaskError
from asyncrl.tasks.later import Loop, loop_of
from asyncrl.tasks.program_cases import CasesVerifier
from asyncrl.tasks.reward_forms import OwnVerifier, as_verifier
from asyncrl.tasks.verifiers import BuiltIn, NoAnswer, Verifier, names
from asyncrl.tasks.verifiers.exact import Exact
from asyncrl.tasks.verifiers.judge import AskedJudge
from asyncrl.tasks.verifiers.run import ProgramRun

OFFERED = "VERIFIERS"
"""The name of the mapping in a module of the user's."""

VERIFIERS: Registry[Verifier] = Registry(
    "verifier",
    {kind: cls() for kind, cls in in_folder("asyncrl.tasks.verifiers", BuiltIn).items()},
    lambda verifier: "",
)
"""Verifiers that `task.verifier` may name."""


class VerifierTable:
    """Verifiers that lines may name. `default` is `task.verifier`; if it is `module:function`
    that module is imported now.

    >>> VerifierTable("exact").find("number")("1,000", {"answer": 1e3})
    1.0
    >>> VerifierTable("exact").find("os:system")
    Traceback (most recent call last):
    LookupError: 'os:system' names a module that run.toml does not: set task.verifier to a \
function of 'os' if you trust it, as its code would be run
    """

    def __init__(self, default: str, run: ProgramRun | None = None) -> None:
        """`run` is the verifier of that name, made from a task's settings. Raises TaskError."""
        self._default = default
        self._own = {"run": run} if run else {}
        self.languages: set[str] = set()
        """Languages of the lines that were checked whose answers are run as programs."""
        self.empty = 0
        """Lines that were checked whose expected answer, for `exact`, is empty."""
        self._module = (module_and_name(default) or ("", ""))[0]
        try:
            self._resolved = {default: _checked(default, self._of_settings(default))}
            self._offered = _offered(self._module) if self._module else {}
        except LookupError as error:
            raise TaskError(f"task.verifier: {error}") from error

    @property
    def executes(self) -> bool:
        """True if one of the verifiers that were looked up executes answers."""
        return any(getattr(verifier, "executes", False) for verifier in self._resolved.values())

    @property
    def loop(self) -> Loop | None:
        """The library under which the verifiers that were looked up and are `async` run; None if
        there are none. The first one's, where they differ."""
        return next(filter(None, map(loop_of, self._resolved.values())), None)

    @property
    def several(self) -> str:
        """The name of a verifier that was looked up and gives several rewards; empty if none
        does."""
        return next((name for name, verifier in self._resolved.items() if names(verifier)), "")

    def check(self, verifier: Verifier, line: Mapping[str, Any]) -> None:
        """Check that a line has what its verifier reads. Raises LookupError."""
        if isinstance(verifier, CasesVerifier):
            self.languages.add(verifier.language(line))
        elif isinstance(verifier, AskedJudge) and self._default != verifier.kind:
            raise LookupError(
                "its verifier is `judge`, which costs requests to a server: only task.verifier "
                "chooses it"
            )
        elif isinstance(verifier, BuiltIn):
            verifier.check(line)
            if isinstance(verifier, Exact) and not str(line["answer"]).strip():
                self.empty += 1
        elif isinstance(verifier, OwnVerifier):
            verifier.check(line)
        elif "answer" not in line:
            raise NoAnswer

    def find(self, name: str) -> Verifier:
        """The verifier of a name in a line; an empty name is that of `task.verifier`. Raises
        LookupError, which says what is wrong with the name."""
        name = name or self._default
        if name not in self._resolved:
            self._resolved[name] = _checked(name, self._of_data(name))
        return self._resolved[name]

    def _of_settings(self, name: str) -> Verifier:
        _parts(name)
        try:
            return self._own.get(name) or VERIFIERS.find(name)
        except ConfigError as error:
            raise LookupError(str(error).removesuffix(".")) from error

    def _of_data(self, name: str) -> Verifier:
        module, function = _parts(name)
        if not module:
            return self._own.get(name) or VERIFIERS.find(name)
        if module not in self._names:
            raise LookupError(
                f"{name!r} names a {'file' if '/' in module else 'module'} that run.toml does not: "
                f"set task.verifier to a function of {module!r} if you trust it, "
                f"as its code would be run"
            )
        if function not in self._offered:
            raise LookupError(
                f"{module!r} does not offer {function!r} to lines: add it to the mapping "
                f"{OFFERED} in that module if a line may name it"
            )
        return self._offered[function]

    @property
    def _names(self) -> set[str]:
        """The ways in which a line may write the module or file that run.toml names."""
        path = Path(self._module)
        return {self._module, *([path.name, f"./{path.name}"] if path.is_absolute() else [])}


def _parts(name: str) -> tuple[str, str]:
    """Module or file, and function of a name; those of a built-in one are empty. Raises
    LookupError."""
    if name in VERIFIERS:
        return "", ""
    if ":" not in name:
        close = difflib.get_close_matches(name, list(VERIFIERS), n=1)
        raise LookupError(
            f"no verifier is called {name!r}"
            + (
                f"; did you mean {close[0]!r}?"
                if close
                else f"; there are {', '.join(VERIFIERS)}, module:function and ./file.py:function"
            )
        )
    module, _, function = name.rpartition(":")
    if not module or not function:
        raise LookupError(f"{name!r} is not module:function: give both")
    return module, function


def _offered(module: str) -> Mapping[str, Verifier]:
    """The functions that an imported module offers to lines. Raises LookupError if they are not
    in a mapping."""
    offered = getattr(sys.modules[module], OFFERED, {})
    if not isinstance(offered, Mapping):
        raise LookupError(
            f"{OFFERED} of {module!r} must be a mapping of names to functions, and is a "
            f"{type(offered).__name__}"
        )
    try:
        return dict(offered)
    except Exception as error:
        raise LookupError(
            f"{OFFERED} of {module!r} cannot be read ({reason(error)}): repair it"
        ) from error


def _checked(name: str, verifier: Any) -> Verifier:
    """Check a verifier. Raises LookupError if it is not a function, or its rewards are misnamed."""
    if not callable(verifier) or isinstance(verifier, type):
        module, _, function = name.rpartition(":")
        raise LookupError(f"{module!r} defines no function {function!r}")
    try:
        names(verifier)
        _ = getattr(verifier, "executes", False)
        return verifier if isinstance(verifier, BuiltIn) else as_verifier(verifier)
    except LookupError:
        raise
    except Exception as error:  # an attribute of the user's object is code, too
        raise LookupError(
            f"its function cannot be looked at ({reason(error)}): repair it"
        ) from error
