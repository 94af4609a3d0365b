"""The mutants of bench/mutants.py: what is changed, what is left alone, and which blocks a test is
seen to reach."""

from __future__ import annotations

import ast
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
from mutants import MARKED, Worker, growing, judged
from mutation.blocks import MODULE, Blocks, marked
from mutation.operators import Mutant, alters, mutants
from mutation.records import Records, imported, mirrored
from mutation.report import Equivalents, Verdict, table
from mutation.trees import ROOT, digest, product

SOURCE = '''"""A file."""
import logging

LIMIT = 30
logger = logging.getLogger(__name__)


class Book:
    def __init__(self) -> None:
        self.held = 0

    def __repr__(self) -> str:
        return f"Book({self.held + 1})"

    async def take(self, some: list[int], most: int = 7) -> bool:
        """Take some."""
        assert some is not None
        if len(some) >= most and not self.held:
            logger.info("%d are too many", len(some) - 1)
            raise ValueError(f"{len(some) + 1} are too many")
        for one in some[self.held :]:
            if one == 3:
                continue
            self.held += one
        await self.note(self.held, most)
        self.seen = max(self.held, 1)
        return bool(self.held)
'''


def made(source: str = SOURCE) -> list[Mutant]:
    return [one for one in mutants("book.py", source) if alters(one, source)]


def test_each_kind_of_change_is_made_and_texts_are_left_alone() -> None:
    found = [(one.operator, *one.lines(SOURCE)) for one in made()]
    assert sorted(found) == sorted(
        [
            ("boolean", "if len(some) >= most and not self.held:", found_line("or")),
            ("condition negated", "if len(some) >= most and not self.held:", NEGATED),
            ("condition negated", "if len(some) >= most and not self.held:", PLAIN),
            ("comparison", "if len(some) >= most and not self.held:", STRICT),
            ("raise dropped", 'raise ValueError(f"{len(some) + 1} are too many")', "pass"),
            (
                "off by one",
                "for one in some[self.held :]:",
                "for one in some[(self.held) + 1 :]:",
            ),
            ("comparison", "if one == 3:", "if one != 3:"),
            ("off by one", "if one == 3:", "if one == 4:"),
            ("loop", "continue", "break"),
            ("assignment dropped", "self.held += one", "pass"),
            ("arithmetic", "self.held += one", "self.held -= one"),
            ("call dropped", "await self.note(self.held, most)", "pass"),
            (
                "arguments swapped",
                "await self.note(self.held, most)",
                "await self.note(most, self.held)",
            ),
            ("assignment dropped", "self.seen = max(self.held, 1)", "pass"),
            ("function", "self.seen = max(self.held, 1)", "self.seen = min(self.held, 1)"),
            ("off by one", "self.seen = max(self.held, 1)", "self.seen = max(self.held, 2)"),
            ("off by one", "self.held = 0", "self.held = 1"),
            ("return changed", "return bool(self.held)", "return not (bool(self.held))"),
        ]
    )


def found_line(sign: str) -> str:
    return f"if len(some) >= most {sign} not self.held:"


NEGATED = "if not (len(some) >= most and not self.held):"
PLAIN = "if len(some) >= most and (self.held):"
STRICT = "if len(some) > most and not self.held:"


def test_mutants_of_the_product_are_programs_and_have_a_block() -> None:
    draw = random.Random(0)
    for path in draw.sample(product(), 12):
        source = (ROOT / path).read_text()
        every = mutants(path, source)
        blocks = {MODULE, *(mark.block for mark in Blocks(source).marks)}
        assert {one.block for one in every} <= blocks
        for one in draw.sample(every, min(8, len(every))):
            if alters(one, source):
                ast.parse(one.applied(source))
                hunks = one.diff(source).count("\n@@")  # arguments may stand lines apart
                assert hunks == 1 or (hunks == 2 and one.operator == "arguments swapped")


@pytest.mark.explore
@pytest.mark.parametrize("path", product())
def test_every_file_of_the_product_can_be_marked(path: str) -> None:
    source = (ROOT / path).read_text()
    text, names = marked(source, 5)
    compile(text, path, "exec")
    assert len(set(names)) == len(names)


def test_a_mark_says_which_blocks_were_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "from __future__ import annotations\n"
        "def f(x):\n"
        '    """Some."""\n'
        "    if x:\n"
        "        return 1\n"
        "    elif x is None:\n"
        "        return 2\n"
        "    else:\n"
        "        x = 3\n"
        "    return x\n"
    )
    text, names = marked(source, 0)
    module = ModuleType("reached_blocks")
    module.marks = bytearray(len(names))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reached_blocks", module)
    space: dict[str, object] = {}
    exec(text, space)
    assert names == ["f#0", "f#1", "f#2", "f#3", "f#4"]
    for value, reached in [(1, "f#0 f#1"), (None, "f#0 f#2"), (0, "f#0 f#3 f#4")]:
        module.marks[:] = bytes(len(names))  # type: ignore[attr-defined]
        space["f"](value)  # type: ignore[operator]
        seen = [name for name, mark in zip(names, module.marks, strict=True) if mark]
        assert seen == reached.split()


def test_what_torchscript_compiles_is_not_marked() -> None:
    source = "import torch\ndef f(x):\n    return x\ndef g(x):\n    return x\n"
    _, names = marked(source + "h = torch.jit.script(f)\n", 0)
    assert names == ["g#0"]


def test_blocks_keep_their_names_when_another_function_changes() -> None:
    names = [mark.block for mark in Blocks(SOURCE).marks]
    changed = SOURCE.replace("self.held = 0", "self.held = 0\n        self.seen = 0")
    assert [mark.block for mark in Blocks(changed).marks] == names
    assert "Book.take#0" in names


def test_tests_are_run_in_shares_that_grow() -> None:
    tests = {f"t{number}": 1.0 for number in range(40)} | {"long": 100.0}
    shares = list(growing(tests, 30.0))
    assert [len(share) for share in shares] == [4, 16, 10]
    assert list(growing({}, 30.0)) == []


def test_who_imports_what() -> None:
    tree = ast.parse("import a.b\nfrom c import d\nfrom c.e import F\n")
    assert imported(tree) == {"a.b", "c", "c.d", "c.e", "c.e.F"}
    assert mirrored("asyncrl/ipc/link.py") == "tests/ipc/"
    assert mirrored("actors/coordinator/stepping.py") == "tests/actors/"


def test_a_score_counts_what_the_simulation_or_a_test_found() -> None:
    some = made()
    fates = [("killed", "not run"), ("survived", "killed"), ("unreached", "survived")]
    verdicts = [
        Verdict(one, simulation, "", tests, "", 0, 1.0)
        for one, (simulation, tests) in zip(some, fates, strict=False)
    ]
    rows = list(table(verdicts))
    assert rows[-1] == ("| **all** | 3 | 0.33 (1 of 3) | 0.50 (1 of 2) | 0.67 (2 of 3) |")
    assert len(rows) == 4


def test_an_equivalent_mutant_is_known_by_its_lines(tmp_path: Path) -> None:
    path = "asyncrl/experience/steps.py"
    one, other = mutants(path, (ROOT / path).read_text())[:2]
    before, after = one.lines((ROOT / path).read_text())
    listed = tmp_path / "equivalent.toml"
    listed.write_text(
        f"[[mutant]]\nfile = '{path}'\nbefore = '''{before}'''\nafter = '''{after}'''\n"
        "reason = 'it is only said'\n"
    )
    assert Equivalents(listed).reason(one) == "it is only said"
    assert Equivalents(listed).reason(other) is None


def test_every_listed_equivalent_is_a_mutant_of_today() -> None:
    known = Equivalents()
    found = {
        key
        for path in {path for path, *_ in known.listed}
        for source in [(ROOT / path).read_text()]
        for one in mutants(path, source)
        for key in [(path, *one.lines(source))]
    }
    assert known.listed <= found, known.listed - found


@pytest.mark.explore
@pytest.mark.slow
@pytest.mark.processes
def test_a_mutant_is_found_by_a_test_that_reaches_it_and_a_hang_ends(tmp_path: Path) -> None:
    path, tests = "asyncrl/experience/steps.py", "tests/experience/test_heart_examples.py"
    before = digest(product())
    source = (ROOT / path).read_text()
    every = [one for one in mutants(path, source) if alters(one, source)]
    changed = next(one for one in every if one.operator == "call dropped")
    hangs = Mutant(path, changed.start, changed.stop, "__import__('time').sleep(1e9)", "", "", 0)
    records = Records(tmp_path / "reached", before)
    recorder, worker = Worker(tmp_path / "marked"), Worker(tmp_path / "plain")
    try:
        names, marks = recorder.tree.mark()
        said = recorder.ask(tests={tests: 0.0}, marked=MARKED, marks=str(marks))
        records.keep(tests, names, said["records"])
        records.load([tests])
        assert records.tests(changed)
        assert judged(worker, changed, records, 10.0).tests == "killed"
        (name, *_) = records.tests(changed)
        with worker.tree.mutated(hangs):
            assert worker.ask(tests={name: -2.0})["at"] == name  # it has ten seconds
        assert worker.ask(tests={name: 1.0})["at"] is None, "the copy is as it was"
    finally:
        recorder.close()
        worker.close()
    assert digest(product()) == before
