"""The source of a function or a class of a notebook or a script, as a module of its own.

Invariant: nothing is pickled. The text has the source of the object, of all functions and classes
of the same notebook that it uses, and their constants as literals; a module that it uses is
imported again. What has no source (a table of data, an open client) is refused by its name.

A cell is known by what IPython keeps for tracebacks (`linecache`), so the text is the cell's even
if a later cell defines the name again. The text is made from the values that the names have now.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import symtable
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from asyncrl.config import ConfigError
from asyncrl.library.later_attributes import Definition, given_later
from asyncrl.library.literals import literal

MAIN = "__main__"

Imports = Mapping[str, str]
"""By the name of a module that processes of a run do not find: the file that it was imported
from."""


class _Definition(NamedTuple):
    """A definition of the top level: its syntax tree, and its text with decorators."""

    node: Definition
    text: str


def is_of_session(thing: Any) -> bool:
    """True for what a notebook or a script defines, which no other process can import."""
    return getattr(thing, "__module__", None) == MAIN


def refuse_unnameable(role: str, thing: Any) -> None:
    """Check that another process can find or define a function or a class by its name. Raises
    ConfigError."""
    name = getattr(thing, "__qualname__", "")
    if isinstance(thing, partial):
        why, cure = "is a functools.partial", "write a function that calls it"
    elif inspect.ismethod(thing) and not inspect.isclass(thing.__self__):
        kind = type(thing.__self__).__name__
        why = f"is the method {thing.__name__} of an object of {kind}"
        cure = "write a function that makes the object and calls it"
    elif not (
        inspect.isclass(thing) or inspect.isroutine(inspect.unwrap(thing))
        if callable(thing)
        else False
    ):
        why, cure = f"is an object of {type(thing).__name__}", "give a function or a class"
    elif name.endswith("<lambda>"):
        why, cure = "is a lambda, which has no name", "write it as a function, with def"
    elif "<locals>" in name:
        outer = name.partition(".<locals>")[0]
        why = f"is defined inside of {outer}, so other processes cannot find its variables"
        cure = "define it at the top level of the notebook or the script"
    elif "." in name:
        why, cure = f"is a part of {name.rpartition('.')[0]}", "define it at the top level"
    else:
        return
    raise ConfigError(f"train: {role} {why}: {cure}.")


def module_text(role: str, thing: Any, unseen: Imports) -> str:
    """The text of a module that defines `thing`, which the session defines, under its name.
    `unseen` has the modules that are imported by their files. Raises ConfigError."""
    return _Writer(role, unseen).text_of(thing)


def modules_used(role: str, thing: Any) -> set[str]:
    """Names of the modules that `module_text` imports for `thing`. Raises ConfigError."""
    writer = _Writer(role, {})
    writer.text_of(thing)
    return writer.modules


class _Writer:
    """Collects what a thing needs, each before what needs it."""

    def __init__(self, role: str, unseen: Imports) -> None:
        self._role = role
        self._unseen = unseen
        self.modules = set[str]()
        self._imports = dict[str, None]()
        self._parts = list[str]()
        self._known = dict[str, Any]()  # names that the text defines, and their values

    def text_of(self, thing: Any) -> str:
        self._define(thing)
        head = f'"""{thing.__name__}, as it was in the session that began the run."""'
        parts = [head, "from __future__ import annotations"]
        if self._imports:
            parts.append("\n".join(sorted(self._imports)))
        return "\n\n".join([*parts, *self._parts]) + "\n"

    def _define(self, thing: Any) -> None:
        """Add the source of a function or class, with what it uses."""
        name = thing.__name__
        if name in self._known:
            if self._known[name] is thing:
                return
            raise ConfigError(
                f"train: {self._role} uses two things called {name}: give one another name."
            )
        self._known[name] = thing
        found = _definition(thing)
        if found is None:
            raise ConfigError(
                f"train: {self._role} needs the source of {name}, which this session does not "
                "have: define it with def or class, in a cell or in a file."
            )
        for used, needed in _names_used(found.node).items():
            self._use(used, found.node, namespace_of(thing), needed=needed)
        self._parts.append(found.text)
        for attribute, value in given_later(thing, found.node).items():
            self._give(f"{name}.{attribute}", value, found.node)

    def _give(self, name: str, value: Any, node: Definition) -> None:
        """Add an attribute that a definition was given after it: `judge.executes = True`."""
        if is_of_session(value) and (inspect.isclass(value) or inspect.isroutine(value)):
            self._use_definition(name, value)
        elif not self._add_constant(name, value) and not node.decorator_list:
            self._refuse_variable(name, value)  # a decorator gives its own again

    def _use(self, name: str, node: ast.AST, namespace: Mapping[str, Any], *, needed: bool) -> None:
        """Add what the global `name` stands for; one that is not there stays as it is, as does one
        without a source that is not `needed`, because it is in an annotation alone."""
        if name not in namespace or (name in self._known and self._known[name] is namespace[name]):
            return
        value = namespace[name]
        if isinstance(value, ModuleType):
            self._import(value, name, node)
        elif is_of_session(value) and (inspect.isclass(value) or inspect.isroutine(value)):
            self._use_definition(name, value)
        elif (home := _home(value, name)) is not None:
            self._import_from(*home, name)
        elif not self._add_constant(name, value) and needed:
            self._refuse_variable(name, value)

    def _add_constant(self, name: str, value: Any) -> bool:
        """Add a constant as text. False if it has none."""
        if (constant := literal(value)) is None:
            return False
        self._known[name] = value
        self._parts.append(f"{name} = {constant.text}")
        self._imports |= {f"import {module}": None for module in sorted(constant.modules)}
        return True

    def _refuse_variable(self, name: str, value: Any) -> NoReturn:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise ConfigError(
            f"train: {self._role} uses the variable {name}, of type {kind}, which another "
            "process cannot make again from its text: make it inside of the function, or read "
            "it from a file there."
        )

    def _use_definition(self, name: str, value: Any) -> None:
        role = self._role
        if value.__name__ == "<lambda>" or "<locals>" in value.__qualname__:
            refuse_unnameable(f"{role} uses {name}, which", value)
        if "." in value.__qualname__:
            refuse_unnameable(f"{role} uses {name}, which", value)
        self._define(value)
        if value.__name__ != name:
            self._known[name] = value
            self._parts.append(f"{name} = {value.__name__}")

    def _import(self, module: ModuleType, name: str, node: ast.AST) -> None:
        """Import a module under a name, and those below it that the node names."""
        own = module.__name__
        if own == MAIN:
            raise ConfigError(
                f"train: {self._role} uses the module {MAIN}, which is another one in the "
                "processes of a run: use the names themselves."
            )
        self._known[name] = module
        self._import_line(own, "" if name == own else name)
        for below in _below(own, name, node):
            self.modules.add(below)
            self._imports[f"import {below}"] = None

    def _import_line(self, module: str, name: str) -> None:
        self.modules.add(module)
        if (file := self._unseen.get(module)) is not None:
            self._imports[_BY_FILE] = None
            self._known[name or module] = sys.modules[module]
            self._parts.append(f"{name or module} = imported({file!r})")
        else:
            self._imports[f"import {module}" + (f" as {name}" if name else "")] = None

    def _import_from(self, module: str, attribute: str, name: str) -> None:
        self.modules.add(module)
        self._known[name] = getattr(sys.modules[module], attribute)
        if (file := self._unseen.get(module)) is not None:
            self._imports[_BY_FILE] = None
            self._parts.append(f"{name} = imported({file!r}).{attribute}")
            return
        given = "" if attribute == name else f" as {name}"
        self._imports[f"from {module} import {attribute}{given}"] = None


_BY_FILE = "from asyncrl.config.own_files import imported"


def namespace_of(thing: Any) -> Mapping[str, Any]:
    """The global names of a function or class."""
    function = inspect.unwrap(thing) if not inspect.isclass(thing) else thing
    found = getattr(function, "__globals__", None)
    return found if found is not None else vars(sys.modules[thing.__module__])


def _home(value: Any, name: str) -> tuple[str, str] | None:
    """The module and the name there of something that was imported from it; None if it was not."""
    module = getattr(value, "__module__", None)
    if not isinstance(module, str) or module == MAIN or module not in sys.modules:
        return None
    for attribute in (getattr(value, "__qualname__", ""), getattr(value, "__name__", ""), name):
        usable = isinstance(attribute, str) and attribute.isidentifier()
        if usable and getattr(sys.modules[module], attribute, None) is value:
            return module, attribute
    return None


def _below(module: str, name: str, node: ast.AST) -> Iterator[str]:
    """Modules below `module`, called `name`, that are used by attributes: `xml.etree` of `xml`."""
    for found in ast.walk(node):
        words, inner = list[str](), found
        while isinstance(inner, ast.Attribute):
            words.insert(0, inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id == name:
            path = module
            for word in words:
                if (path := f"{path}.{word}") not in sys.modules:
                    break
                yield path


def _names_used(node: Definition) -> dict[str, bool]:
    """Global names that a definition uses; True if it needs one outside of annotations of
    functions, which no process evaluates."""
    with_annotations, without = _globals(ast.unparse(node)), _globals(ast.unparse(_bare(node)))
    used = {name: name in without for name in sorted(with_annotations)}
    used.pop(node.name, None)
    return used


def _bare(node: ast.AST) -> ast.AST:
    """A copy without annotations of functions."""
    copy = ast.parse(ast.unparse(node))
    for found in ast.walk(copy):
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
            found.returns = None
        elif isinstance(found, ast.arg):
            found.annotation = None
    return copy


def _globals(text: str) -> set[str]:
    """Names of a module that a text reads, and does not define itself at its top level."""
    used, waiting = set[str](), [symtable.symtable(text, "<cell>", "exec")]
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        at_top = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or at_top):
                used.add(symbol.get_name())
    return used


def _definition(thing: Any) -> _Definition | None:
    """The definition of a function or class; None if its source is not there."""
    for file, line in _places(thing):
        text = "".join(linecache.getlines(file))
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        for node in reversed(tree.body):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if node.name == thing.__name__ and (
                line is None or first <= line <= (node.end_lineno or 0)
            ):
                lines = text.split("\n")[first - 1 : node.end_lineno]
                return _Definition(node, "\n".join(lines))
    return None


def _places(thing: Any) -> Iterator[tuple[str, int | None]]:
    """Files (cells are known as files) in which a definition may be, the likeliest first, and a
    line of it, if known."""
    if not inspect.isclass(thing):
        if (code := getattr(inspect.unwrap(thing), "__code__", None)) is not None:
            yield code.co_filename, code.co_firstlineno
        return
    for member in vars(thing).values():
        code = getattr(
            getattr(member, "__func__", getattr(member, "fget", member)), "__code__", None
        )
        if code is not None and code.co_name != "<lambda>" and _lies_in(member, thing):
            yield code.co_filename, code.co_firstlineno
    if file := getattr(sys.modules[MAIN], "__file__", None):
        yield file, None
    cells = [name for name, entry in linecache.cache.items() if len(entry) == 4 and not entry[1]]
    yield from ((name, None) for name in reversed(cells))


def _lies_in(member: Any, kind: type) -> bool:
    qualname = getattr(
        getattr(member, "__func__", getattr(member, "fget", member)), "__qualname__", ""
    )
    return str(qualname).startswith(f"{kind.__qualname__}.")
