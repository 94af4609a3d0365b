"""Verifiers as people bring them from elsewhere: other signatures, other values, other manners."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

from stranger_kit import data
from stranger_kit.attempt import REFUSED, RUNS, Case, Said

Maker = Callable[[random.Random, Path, Path], Case]
REFUSED_CODE: dict[str, str] = {
    "words alone": "def judge(*, answer, line):\n    return 1.0\n",
    "no argument": "def judge():\n    return 1.0\n",
    "a coroutine": "async def f():\n    return 1.0\ndef judge(answer, line):\n    return f()\n",
    "a generator": "def judge(answer, line):\n    yield 1.0\n",
    "an async generator": "async def judge(answer, line):\n    yield 1.0\n",
    "a list": "def judge(answer, line):\n    return [1.0]\n",
    "a tuple": "def judge(answer, line):\n    return (1.0, 'right')\n",
    "a dict": "def judge(answer, line):\n    return {{'score': 1.0}}\n",
    "a dict of others": (
        "def judge(answer, line):\n    return {{'other': 1.0}}\njudge.rewards = ('score',)\n"
    ),
    "a text": "def judge(answer, line):\n    return '1.0'\n",
    "nothing": "def judge(answer, line):\n    pass\n",
    "a complex number": "def judge(answer, line):\n    return 1j\n",
    "a class": "class judge:\n    def __init__(self, answer, line):\n        pass\n",
    "a number": "judge = 1.0\n",
    "a module": "import json as judge\n",
    "rewards of no names": "def judge(answer, line):\n    return 1.0\njudge.rewards = 'score'\n",
    "rewards of a name twice": "def judge(answer):\n    return 1.0\njudge.rewards = ('a', 'a')\n",
    "not there": "def judges(answer, line):\n    return 1.0\n",
    "no Python": "def judge(answer, line)\n    return 1.0\n",
    "an import that fails": "import no_such_module\ndef judge(answer, line):\n    return 1.0\n",
    "an import that raises": "raise RuntimeError('\\x1b[2J')\n",
    "an import that exits": "import sys\nsys.exit({code})\n",
    "an import that needs a file": "open('no such file')\n",
    "an import that is itself": "from {module} import judge\n",
    "rewards that raise": (
        "class J:\n    rewards = property(lambda self: 1 / 0)\n"
        "    def __call__(self, answer, line):\n        return 1.0\n"
        "judge = J()\njudge.__module__ = __name__\n"
    ),
    "a mapping that raises": (
        "import collections.abc as c\nclass M(c.Mapping):\n    __len__ = __getitem__ = None\n"
        "    def __iter__(self):\n        raise RuntimeError('no')\n"
        "def judge(answer, line):\n    return 1.0\nVERIFIERS = M()\n"
    ),
    "a partial of too few": (
        "import functools\ndef f(a):\n    return 1.0\njudge = functools.partial(f)\n"
        "judge.__module__ = __name__\n"
    ),
    "a module that raises": ("def __getattr__(name):\n    raise ValueError(name)\n"),
    "an import that raises an error that raises": (
        "class E(Exception):\n    def __str__(self):\n        raise E\nraise E\n"
    ),
    "an import without an end of depth": "def f():\n    f()\nf()\n",
    "NUL in the source": "x = 1\0\ndef judge(answer, line):\n    return 1.0\n",
    "a number that raises": (
        "class F(float):\n    def __float__(self):\n        raise ValueError('no')\n"
        "def judge(answer, line):\n    return F(1)\n"
    ),
    "bytes": "def judge(answer, line):\n    return b'1'\n",
    "an array": "import numpy\ndef judge(answer, line):\n    return numpy.ones(3)\n",
    "not UTF-8": "x = '\xe9'\ndef judge(answer, line):\n    return 1.0\n",
    "raises": "def judge(answer, line):\n    raise ValueError('no \\x1b[2J ' * {code})\n",
    "NaN": "def judge(answer, line):\n    return float('nan')\n",
    "raises by the line": "def judge(answer, line):\n    return line['nonesuch']\n",
    "exits": "import sys\ndef judge(answer, line):\n    sys.exit({code})\n",
    "recursion": "def judge(answer, line):\n    return judge(answer, line)\n",
    "memory": "def judge(answer, line):\n    return len(bytearray(2**45))\n",
    "an infinite number": "def judge(answer, line):\n    return 10.0 ** 308 * 10\n",
    "raises an error that raises": (
        "class E(Exception):\n    def __str__(self):\n        raise E\n"
        "def judge(answer, line):\n    raise E\n"
    ),
    "raises in a group": (
        "def judge(answer, line):\n"
        "    raise ExceptionGroup('x', [ValueError('\\x1b[2J'), KeyError(1)])\n"
    ),
    "asks the user": "def judge(answer, line):\n    return float(input('reward? '))\n",
    "opens without an end": (
        "import os\ndef judge(answer, line):\n    return [os.pipe() for _ in range(10**7)][0]\n"
    ),
    "a whole number without an end": "def judge(answer, line):\n    return 10 ** 400\n",
    "a file at answer time": "def judge(answer, line):\n    return float(open({file!r}).read())\n",
}
"""Code with which a run cannot start."""
NOTED_CODE: dict[str, str] = {
    "raises no Exception": "def judge(answer, line):\n    raise KeyboardInterrupt\n",
    "ends the process": "import os\ndef judge(answer, line):\n    os._exit({code})\n",
    # in `strict` it is the first process of its namespace, which no signal of its own ends
    "kills itself": "import os\ndef judge(answer):\n    os.kill(os.getpid(), 9)\n    os._exit(9)\n",
    "crashes": "import ctypes\ndef judge(answer, line):\n    ctypes.string_at(0)\n",
    "never ends": "def judge(answer, line):\n    while True: pass\n",
    "sleeps": "import time\ndef judge(answer, line):\n    time.sleep(100)\n",
    "stops itself": "import os\ndef judge(answer):\n    os.kill(os.getpid(), 19)\n    while 1: 0\n",
}
"""Code that gives no verdict on the data's own answer: a note says so."""
RUNS_CODE: dict[str, str] = {
    "verl": "def judge(data_source, solution_str, ground_truth, extra_info=None): return 1.0\n",
    "TRL": "def judge(completions, **kwargs):\n    return [1.0 for _ in completions]\n",
    "TRL with names": "def judge(prompts, completions, answer):\n    return [1.0]\n",
    "one argument": "def judge(answer):\n    return 1.0\n",
    "async": "async def judge(answer, line):\n    return 1.0\n",
    "async in an object": (
        "class J:\n    async def __call__(self, answer, line):\n        return 1.0\n"
        "judge = J()\njudge.__module__ = __name__\n"
    ),
    "plain": "def judge(answer, line):\n    return float(answer.strip() == str(line['answer']))\n",
    "any arguments": "def judge(*given, **named):\n    return 1.0\n",
    "a default": "def judge(answer, line, k={code}):\n    return 1.0\n",
    "a lambda": "judge = lambda answer, line: 1\n",
    "an object": (
        "class J:\n    def __call__(self, answer, line):\n        return 0.5\n"
        "judge = J()\njudge.__module__ = __name__\n"
    ),
    "a bool": "def judge(answer, line):\n    return True\n",
    "numpy": "import numpy\ndef judge(answer, line):\n    return numpy.float32(0.5)\n",
    "numpy's bool": "import numpy\ndef judge(answer, line):\n    return numpy.bool_(1)\n",
    "names": (
        "def judge(answer, line):\n    return {{'a': 1, 'b': 0.5}}\njudge.rewards = ('a', 'b')\n"
    ),
    "prints": "def judge(answer, line):\n    print('x' * 300_000)\n    return 1.0\n",
    "prints at import": "print('hello' * {code})\ndef judge(answer, line):\n    return 1.0\n",
    "closes its streams": (
        "import os\ndef judge(answer, line):\n    os.close(1); os.close(2)\n    return 1.0\n"
    ),
    "changes the line": (
        "def judge(answer, line):\n    line.clear()\n    line['x'] = line\n    return 1.0\n"
    ),
    "threads": (
        "import threading, time\ndef judge(answer, line):\n"
        "    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n    return 1.0\n"
    ),
    "signals": (
        "import signal\ndef judge(answer, line):\n    signal.signal(signal.SIGALRM, lambda *_: 0)\n"
        "    signal.alarm(9)\n    return 1.0\n"
    ),
    "a process that stays": (
        "import os, time\ndef judge(answer, line):\n    if not os.fork():\n"
        "        os.setsid()\n        time.sleep(1000)\n        os._exit(0)\n    return 1.0\n"
    ),
    "a fraction": "import fractions\ndef judge(answer):\n    return fractions.Fraction(1, 2)\n",
    "a decimal": "import decimal\ndef judge(answer, line):\n    return decimal.Decimal('0.5')\n",
    "an array of none": "import numpy\ndef judge(answer, line):\n    return numpy.array(0.5)\n",
    "positions alone": "def judge(answer, line, /):\n    return 1.0\n",
    "a partial": (
        "import functools\ndef f(k, answer, line):\n    return k\n"
        "judge = functools.partial(f, 0.5)\njudge.__module__ = __name__\n"
    ),
    "a cache": (
        "import functools\n@functools.cache\ndef f(a):\n    return 0.5\n"
        "def judge(answer, line):\n    return f(answer)\n"
    ),
    "its own loop": (
        "import asyncio\nasync def f():\n    return 0.5\n"
        "def judge(answer, line):\n    return asyncio.run(f())\n"
    ),
    "temporary files": (
        "import tempfile\ndef judge(answer):\n    with tempfile.NamedTemporaryFile('w') as f:\n"
        "        return float(f.write('x'))\n"
    ),
    "a pool of threads": (
        "from concurrent.futures import ThreadPoolExecutor as P\n"
        "def judge(answer, line):\n    with P(2) as p:\n        return sum(p.map(float, [1, 0]))\n"
    ),
    "a pool of processes": (
        "import multiprocessing as m\n"
        "def judge(answer, line):\n    with m.get_context('fork').Pool(2) as p:\n"
        "        return sum(p.map(float, [1, 0]))\n"
    ),
    "special tokens": (
        "def judge(answer):\n    return float(answer.text_special.startswith(answer[:1]))\n"
    ),
    "logs": "import logging\ndef judge(answer):\n    logging.error('x' * 9999)\n    return 1.0\n",
    "warns": "import warnings\ndef judge(answer, line):\n    warnings.warn('x')\n    return 1.0\n",
    "a limit of recursion": (
        "import sys\nsys.setrecursionlimit(10**6)\ndef judge(answer, line):\n    return 1.0\n"
    ),
    "a handler of signals at import": (
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "def judge(answer, line):\n    return 1.0\n"
    ),
    "a helper": "from {module}_helper import half\ndef judge(answer, line):\n    return half\n",
    "a file at import": (
        "text = open({file!r}).read()\ndef judge(answer, line):\n    return float(text)\n"
    ),
}
"""Code that gives a verdict on every answer."""
WRITES = (
    "import os\ndef judge(answer, line):\n"
    "    for path in ({file!r}, {outside!r}, 'here', os.path.expanduser('~/there')):\n"
    "        try: open(path, 'w').write('changed')\n        except OSError: pass\n"
    "    for pid in (os.getppid(), -1):\n"
    "        try: os.kill(pid, 15)\n        except OSError: pass\n    return 1.0\n"
)


def of(code: str, right: frozenset[int], says: str, note: bool | None) -> Maker:
    """A check with a verifier of this code; True: with a note that it gave no verdict."""

    def make(draw: random.Random, folder: Path, model: Path) -> Case:
        module = f"judges_{draw.randrange(10**6)}"
        modules = folder / "modules"
        modules.mkdir()
        (folder / "file").write_text("0.5")
        text = code.format(
            module=module,
            code=draw.choice([1, 3, 9]),
            file=str(folder / "file"),
            outside=str(folder / "outside"),
        )
        (modules / f"{module}.py").write_bytes(text.encode("latin-1"))
        (modules / f"{module}_helper.py").write_text("half = 0.5\n")
        sandbox = "strict" if "open({file!r}).read())\n" in code or "outside" in code else ""
        sandbox = sandbox or draw.choice(["auto", "process"])
        case = data.check(
            data.write(folder / "d.jsonl", data.good(draw)),
            model,
            f"task.verifier={module}:judge",
            "task.verdict_s=3",
            f"task.sandbox={sandbox}",
            right=right,
            says=says or module,
        )
        return case._replace(
            may=("modules/__pycache__",),
            environment={"PYTHONDONTWRITEBYTECODE": "1"},
            witness=lambda said: noted(said, note),
        )

    return make


def noted(said: Said, note: bool | None) -> str:
    """A difference between the note on the verifier and what is true of it."""
    has = re.search(r"no verdict on the data's own answer", said.out) is not None
    if note is None or has == note:
        return ""
    return f"a note: {has}, and there should be one: {note}: {said.out[-600:]}"


MAKERS: dict[str, Maker] = {
    **{name: of(code, REFUSED, r"verifier", None) for name, code in REFUSED_CODE.items()},
    **{name: of(code, RUNS, "", True) for name, code in NOTED_CODE.items()},
    **{f"{name}, good": of(code, RUNS, "", False) for name, code in RUNS_CODE.items()},
    "writes and kills": of(WRITES, RUNS, "", False),
}
