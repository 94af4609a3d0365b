"""Mutants of a source file: one small change each, as text, so that a survivor reads as a diff.

Left alone is what no test of behaviour can see, or can only repeat: docstrings, annotations, texts
of logs and errors, `__repr__`, asserts, decorators, and numbers outside functions (tuning values).
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from mutation.blocks import MODULE, Blocks, suites

COMPARED = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
COMPUTED = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: (r"\*\*", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: (r"\|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
INSTEAD = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}
UNORDERED = {"min", "max", "cast", "isinstance", "issubclass", "getattr", "hasattr", "setattr"}
"""Functions whose arguments are not swapped: it changes nothing, or nothing works any more."""
UNLIKE = (ast.Starred, ast.Dict, ast.Lambda)
"""Arguments that fit in no other's place."""
UNIMPORTANT = {"strict", "slots", "frozen", "repr", "flush", "exist_ok", "parents", "name"}
"""Keyword arguments whose values are left alone."""
LOGGED = {"debug", "info", "warning", "error", "exception", "critical", "log"}
EMPTY = {"list": "[]", "dict": "{}", "tuple": "()", "set": "set()", "frozenset": "frozenset()"}
UNMADE = {"AssertionError", "NotImplementedError"}
"""Errors of what cannot happen; a test cannot bring them about."""


class Mutant(msgspec.Struct, frozen=True):
    """A change of one file: the bytes `start` to `stop` become `text`."""

    path: str
    start: int
    stop: int
    text: str
    operator: str
    block: str
    line: int

    def applied(self, source: str) -> str:
        """The source with this change."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.stop :]).decode()

    def diff(self, source: str) -> str:
        """The change as a unified diff, with one line of context."""
        return "\n".join(
            difflib.unified_diff(
                source.splitlines(),
                self.applied(source).splitlines(),
                f"a/{self.path}",
                f"b/{self.path}",
                n=1,
                lineterm="",
            )
        )

    def lines(self, source: str) -> tuple[str, str]:
        """The lines that are changed, before and after, without indentation."""
        changed = self.diff(source).splitlines()[3:]
        kept = [[line[1:].strip() for line in changed if line[0] == sign] for sign in "-+"]
        return "\n".join(kept[0]), "\n".join(kept[1])


def mutants(path: str, source: str) -> list[Mutant]:
    """All mutants of a file, in the order of their places; few may be no other program."""
    return sorted(set(_Mutations(path, source).all()), key=lambda one: (one.start, one.stop))


def alters(mutant: Mutant, source: str) -> bool:
    """False for a mutant that is no program, or the same one."""
    try:
        return ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


class _Mutations:
    def __init__(self, path: str, source: str) -> None:
        self._path, self._data = path, source.encode()
        self._blocks = Blocks(source)
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._block, self._line = MODULE, 0

    def all(self) -> Iterator[Mutant]:
        yield from self._suite(self._blocks.tree.body, None)

    # Places and texts

    def _at(self, node: ast.AST) -> tuple[int, int]:
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _text(self, node: ast.AST) -> str:
        start, stop = self._at(node)
        return self._data[start:stop].decode()

    def _made(self, start: int, stop: int, text: str, operator: str) -> Mutant:
        return Mutant(self._path, start, stop, text, operator, self._block, self._line)

    def _instead(self, node: ast.AST, text: str, operator: str) -> Mutant:
        return self._made(*self._at(node), text, operator)

    def _between(
        self, left: ast.AST, right: ast.AST, sign: tuple[str, str], operator: str
    ) -> Iterator[Mutant]:
        """The operator between two operands replaced; comments there are left alone."""
        start, stop = self._at(left)[1], self._at(right)[0]
        between = re.sub(rb"#[^\n]*", lambda m: b" " * len(m[0]), self._data[start:stop]).decode()
        pattern = rf"\b{sign[0]}\b" if sign[0][0].isalpha() else sign[0]
        if (match := re.search(pattern, between)) is not None:
            yield self._made(start + match.start(), start + match.end(), sign[1], operator)

    # Statements

    def _suite(self, body: list[ast.stmt], function: ast.AST | None) -> Iterator[Mutant]:
        for statement in body:
            self._block, self._line = self._blocks.of[statement], statement.lineno
            match statement:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    if name not in {"__repr__", "__str__"}:
                        yield from self._suite(statement.body, statement)
                case ast.ClassDef():
                    yield from self._suite(statement.body, None)
                case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assert():
                    continue
                case _ if not _said(statement):
                    yield from self._statement(statement, function)
                    for node in _expressions(statement):
                        yield from self._expression(node, function is not None)
                    for suite in suites(statement):
                        yield from self._suite(suite, function)

    def _statement(self, statement: ast.stmt, function: ast.AST | None) -> Iterator[Mutant]:
        match statement:
            case ast.If(test=test) | ast.While(test=test):
                yield from self._negated(test)
            case ast.Return(value=ast.expr() as value) if function is not None:
                yield from self._returned(value, function)
            case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())):
                if function is not None and "super()" not in self._text(statement):
                    yield self._instead(statement, "pass", "call dropped")
            case ast.Assign(targets=[target]) if _held(target):
                if function is not None and function.name != "__init__":
                    yield self._instead(statement, "pass", "assignment dropped")
            case ast.AugAssign(op=op, target=target, value=value):
                yield self._instead(statement, "pass", "assignment dropped")
                if type(op) in COMPUTED:
                    yield from self._between(target, value, COMPUTED[type(op)], "arithmetic")
            case ast.Delete():
                yield self._instead(statement, "pass", "statement dropped")
            case ast.Raise(exc=error):
                made = error.func if isinstance(error, ast.Call) else error
                if not (isinstance(made, ast.Name) and made.id in UNMADE):
                    yield self._instead(statement, "pass", "raise dropped")
            case ast.Break():
                yield self._instead(statement, "continue", "loop")
            case ast.Continue():
                yield self._instead(statement, "break", "loop")

    def _negated(self, test: ast.expr) -> Iterator[Mutant]:
        """The opposite condition; that of a comparison is a mutant of the comparison."""
        match test:
            case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot()]):
                return
            case ast.Compare(ops=[ast.In() | ast.NotIn()]) | ast.UnaryOp(op=ast.Not()):
                return
        yield self._instead(test, f"not ({self._text(test)})", "condition negated")

    def _returned(self, value: ast.expr, function: ast.AST) -> Iterator[Mutant]:
        text = self._text(value)
        kind = ast.unparse(function.returns) if function.returns else ""
        head = kind.partition("[")[0]
        if kind == "bool":
            if not isinstance(value, ast.Constant | ast.Compare | ast.UnaryOp):
                yield self._instead(value, f"not ({text})", "return changed")
        elif kind in {"int", "float"}:
            yield self._instead(value, f"({text}) + 1", "return changed")
        elif kind.endswith("| None"):
            yield self._instead(value, "None", "return changed")
        elif kind == "str":
            return  # mostly a text for people
        elif head in EMPTY:
            yield self._instead(value, EMPTY[head], "return changed")
        elif not any(isinstance(part, ast.Yield) for part in ast.walk(function)):
            yield self._instead(value, "None", "return changed")

    # Expressions

    def _expression(self, node: ast.AST, inside: bool) -> Iterator[Mutant]:
        """The mutants of an expression; `inside` a function."""
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and _logs(node)):
            return
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                for one, op, other in zip([left, *others], ops, others, strict=False):
                    yield from self._between(one, other, COMPARED[type(op)], "comparison")
            case ast.BoolOp(op=op, values=values):
                sign = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                for one, other in pairwise(values):
                    yield from self._between(one, other, sign, "boolean")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._instead(node, f"({self._text(operand)})", "condition negated")
            case ast.IfExp(test=test):
                yield from self._negated(test)
            case ast.comprehension(ifs=tests):
                for test in tests:
                    yield from self._negated(test)
            case ast.BinOp(left=left, op=op, right=right) if inside and type(op) in COMPUTED:
                if not any(map(_joined, (left, right))):
                    yield from self._between(left, right, COMPUTED[type(op)], "arithmetic")
            case ast.Call():
                yield from self._called(node)
            case ast.Slice() if inside:
                for bound, by in ((node.lower, "+"), (node.upper, "-")):
                    if bound is not None and not isinstance(bound, ast.Constant):
                        yield self._instead(bound, f"({self._text(bound)}) {by} 1", "off by one")
            case ast.Constant(value=bool() as value) if inside:
                yield self._instead(node, str(not value), "constant")
            case ast.Constant(value=int() as value) if inside:
                yield self._instead(node, str(value + 1), "off by one")
            case ast.Constant(value=float() as value) if inside:
                yield self._instead(node, repr(value * 2 if value else 1.0), "constant")
        for child in ast.iter_child_nodes(node):
            if not (isinstance(child, ast.keyword) and child.arg in UNIMPORTANT):
                yield from self._expression(child, inside)

    def _called(self, node: ast.Call) -> Iterator[Mutant]:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else self._text(node.func)
        if name in INSTEAD:
            stop = self._at(node.func)[1]
            yield self._made(stop - len(name), stop, INSTEAD[name], "function")
        if name == "range" and not isinstance(node.args[-1], ast.Constant):
            yield self._instead(node.args[-1], f"({self._text(node.args[-1])}) - 1", "off by one")
        match node.args:
            case [first, second, *_] if name not in UNORDERED and not any(
                isinstance(one, UNLIKE) or _joined(one) for one in (first, second)
            ):
                start, stop = self._at(first)[0], self._at(second)[1]
                between = self._data[self._at(first)[1] : self._at(second)[0]].decode()
                text = self._text(second) + between + self._text(first)
                yield self._made(start, stop, text, "arguments swapped")


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement itself: not of its suites, no annotation, no error's text."""
    if isinstance(statement, ast.Raise):
        return
    for name, value in ast.iter_fields(statement):
        if name in {"annotation", "body", "orelse", "finalbody"}:
            continue
        for one in value if isinstance(value, list) else [value]:
            match one:
                case ast.expr() | ast.withitem():
                    yield one
                case ast.match_case(guard=ast.expr() as guard):
                    yield guard


def _logs(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name):
            return name in LOGGED and "log" in owner.lower() and "prob" not in owner.lower()
        case ast.Name(id="print"):
            return True
    return False


def _said(statement: ast.stmt) -> bool:
    """True for a statement that only logs or prints."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and _logs(statement.value)
    )


def _held(target: ast.expr) -> bool:
    """True for a target that stays after its function."""
    if isinstance(target, ast.Tuple):
        return any(map(_held, target.elts))
    return isinstance(target, ast.Attribute | ast.Subscript)


def _joined(node: ast.expr) -> bool:
    """True for a text or a list: an operand that only `+` takes."""
    if isinstance(node, ast.JoinedStr | ast.List | ast.ListComp | ast.Tuple):
        return True
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
