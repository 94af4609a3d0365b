"""Functions and classes of a notebook as modules: the same in another process, or refused in a
sentence that names what has no source."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType
from typing import Any

import pytest
from cells import Cells

import asyncrl as rl
from asyncrl.config import ConfigError
from asyncrl.library.own_source import module_text, refuse_unnameable


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Cells:
    session = Cells()
    monkeypatch.setitem(sys.modules, "__main__", session.module)
    return session


def elsewhere(thing: Any) -> Any:
    """The thing as another process has it: from the text alone."""
    refuse_unnameable("reward", thing)
    module = ModuleType("elsewhere")
    sys.modules["elsewhere"] = module
    try:
        exec(module_text("reward", thing, {}), vars(module))
        return getattr(module, thing.__name__)
    finally:
        del sys.modules["elsewhere"]


SAME = {
    "its constants, as they are when the run begins": (
        ["A = 1", "def f(x):\n    return x + A", "A = 2"],
        3,
    ),
    "literals within one another, and numbers without a literal": (
        [
            "T = {'a': [1, (2.5,)], 'b': {3}, 'c': float('inf'), 'd': b'x', 'e': frozenset()}",
            "def f(x):\n    return T['a'][0] + T['c'] + len(T['b']) + len(T['e'])",
        ],
        float("inf"),
    ),
    "constants of the standard library, within others": (
        [
            "import re as expressions\nfrom pathlib import Path\nfrom fractions import Fraction",
            "T = {'r': [expressions.compile('a+')], 'p': Path('a/b'), 'f': (Fraction(1, 2),)}",
            "def f(x):\n    return len(T['r'][0].findall('aa a')) + len(T['p'].parts) + T['f'][0]",
        ],
        4.5,
    ),
    "a compiled expression": (
        [
            "import re\nW = re.compile('[A-Z]+', re.I)",
            "def f(x):\n    return len(W.findall('aB 1 c'))",
        ],
        2,
    ),
    "other functions, and those that call each other": (
        [
            "def even(n):\n    return n == 0 or odd(n - 1)",
            "def odd(n):\n    return n and even(n - 1)",
            "def f(x):\n    return even(10)",
        ],
        True,
    ),
    "modules under their names, and modules below them": (
        [
            "import xml.etree.ElementTree\nimport os.path as p\nfrom math import floor as down, pi",
            "def f(x):\n    return down(pi) + len(p.join('a', 'b'))"
            " + len(xml.etree.ElementTree.fromstring('<a><b/></a>'))",
        ],
        7,
    ),
    "an alias": (["def g(x):\n    return 5", "h = g", "def f(x):\n    return h(x)"], 5),
    "decorators": (
        [
            "from functools import lru_cache, wraps\nT = 3",
            "def twice(g):\n    @wraps(g)\n    def h(x):\n        return 2 * g(x)\n    return h",
            "@twice\n@lru_cache\ndef f(x):\n    return x + T",
        ],
        8,
    ),
    "classes, bases and data classes": (
        [
            "from dataclasses import dataclass\nN = 2",
            "@dataclass\nclass P:\n    n: int = N",
            "class B:\n    def a(self):\n        return P().n",
            "class C(B):\n    k = N\n    def b(self):\n        return super().a() + self.k",
            "def f(x):\n    return C().b()",
        ],
        4,
    ),
    "the newest of several definitions": (
        ["def g():\n    return 1", "def f(x):\n    return g()", "def g():\n    return 2"],
        2,
    ),
    "a definition among others in a cell, with a comment": (
        ["x = object()\n\ndef f(x):  # of the same cell\n    return x\n\nprint"],
        1,
    ),
    "attributes that a function or a class was given later": (
        [
            "from enum import IntEnum\nclass E(IntEnum):\n    A = 1\nT = 2",
            "class K:\n    n, m = 0, 1\n    k = 0\n    def f(self):\n        late = 1",
            "K.k = 5\nK.late = 7",
            "def g(x):\n    return 3",
            "def f(x):\n    return f.more(x) + f.parts['a'] + K.k + K.late + E.A + f.plain",
            "f.more = g\nf.parts = {'a': T}\nf.plain = True",
        ],
        19,
    ),
    "names of annotations that are not there, or have no source": (
        ["x = object()", "def f(x: 'Row', y: x = 3) -> Unknown:\n    return y"]
        if sys.version_info >= (3, 14)
        else ["Row = open", "def f(x: 'Row', y: Row = 3):\n    return y"],
        3,
    ),
    "names that are its own": (
        [
            "big = object()",
            "def f(big):\n    return [big for big in [big]][0] + (lambda big: big)(1)",
        ],
        2,
    ),
}


@pytest.mark.parametrize("what", SAME)
def test_it_is_the_same_elsewhere(what: str, cells: Cells) -> None:
    texts, expected = SAME[what]
    for text in texts:
        cells.run(text)
    assert cells["f"](1) == expected
    assert elsewhere(cells["f"])(1) == expected


def test_a_class_and_an_async_function_are_the_same_elsewhere(cells: Cells) -> None:
    cells.run("import asyncrl as rl\nSPAN = 2.0")
    cells.run(
        "class Spread(rl.GroupAdvantage):\n"
        "    def of_group(self, rewards):\n"
        "        return [(one - min(rewards)) / SPAN for one in rewards]"
    )
    cells.run("class Empty(Spread):\n    odd_group = True")
    cells.run("async def solve(client, episode):\n    return SPAN")
    for name in ("Spread", "Empty"):
        found = elsewhere(cells[name])
        assert issubclass(found, rl.GroupAdvantage) and found().of_group([1.0, 2.0]) == [0.0, 0.5]
    assert elsewhere(cells["Empty"]).odd_group is True
    assert asyncio.run(elsewhere(cells["solve"])(None, None)) == 2.0


def test_what_a_cell_defines_again_is_the_text_that_the_object_has(cells: Cells) -> None:
    cells.run("def f(x):\n    return 'old'")
    old = cells["f"]
    cells.run("def f(x):\n    return 'new'")
    assert elsewhere(old)(1) == "old" and elsewhere(cells["f"])(1) == "new"


REFUSED = {
    "f = lambda answer, line: 1.0": "is a lambda, which has no name: write it as a function",
    "def outer():\n    def f(a, b): return 1\n    return f\nf = outer()": "defined inside of outer",
    "class A:\n    def m(self, a, b): return 1\nf = A().m": "is the method m of an object of A",
    "class A:\n    def m(self, a, b): return 1\nf = A.m": "is a part of A: define it at the top",
    "from functools import partial\nf = partial(print, 1)": "is a functools.partial: write a",
    "class A:\n    def __call__(self, a, b): return 1\nf = A()": "is an object of A: give a",
    "f = 3": "is an object of int: give a function or a class",
    "import threading\ntable = threading.Lock()\ndef f(a, b): return table": (
        "uses the variable table, of type _thread.lock, which another process cannot make"
    ),
    "rows = [object()]\ndef f(a, b): return rows": "uses the variable rows, of type list",
    "words = ['a' * 9] * 150_000\ndef f(a, b): return words": "uses the variable words",
    "import sys\nmain = sys.modules['__main__']\ndef f(a, b): return main": "the module __main__",
    "g = lambda a: 1\ndef f(a, b): return g(a)": "uses g, which is a lambda",
    "exec('def f(a, b): return 1')": "needs the source of f, which this session does not have",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_has_no_source_is_refused_by_name(text: str, cells: Cells) -> None:
    cells.run(text)
    with pytest.raises(ConfigError) as refused:
        elsewhere(cells["f"])
    assert str(refused.value).startswith("train: reward ") and REFUSED[text] in str(refused.value)
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)
