"""`asyncrl tasks`: each task with an example, and if the bundled model can learn it."""

from __future__ import annotations

import difflib

from rich.console import Console

from asyncrl.config.errors import ConfigError
from asyncrl.escape import escaped, quoted
from asyncrl.explain.display import show_rows
from asyncrl.tasks.catalog import CatalogEntry, catalog, verdict

SHOWN = 60
"""Characters of a question in the list."""
DATA = (
    "data is a data set of your own, as it is (docs/data.md): `asyncrl init FILE`. "
    "`asyncrl tasks NAME` shows one task, `asyncrl init NAME` writes a run.toml for it."
)


def show_tasks(name: str | None, console: Console) -> None:
    """Show the list, or the task of this name. Raises ConfigError where there is none."""
    entries = catalog()
    if name is None:
        _show_list(list(entries.values()), console)
    elif (entry := entries.get(name)) is not None:
        for line in page(entry):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    else:
        close = difflib.get_close_matches(name, [*entries, "data"], n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else "; `asyncrl tasks` lists them"
        raise ConfigError(f"{quoted(name)} is not a task{hint}")


def page(entry: CatalogEntry) -> list[str]:
    """Lines about one task."""
    return [
        entry.name,
        "",
        "an example:",
        *(f"  {escaped(line)}" for line in entry.question.splitlines()),
        "its answer:",
        *(f"  {escaped(line)}" for line in (entry.answer or "(none)").splitlines()),
        "",
        f"prompt: at most {entry.prompt_tokens} tokens of the bundled model; answer: at most "
        f"{entry.answer_tokens}",
        f"bundled model: {verdict(entry)}",
        f"to try it: asyncrl init {entry.name} && asyncrl train run.toml",
    ]


def example(entry: CatalogEntry, shown: int = SHOWN) -> str:
    """One line: the end of the question, where the data are, in so many characters, and the
    answer, in half as many."""
    question = " ".join(entry.question.split())
    if len(question) > shown:
        question = f"… {question[2 - shown :]}"
    answer = " ".join((entry.answer or "?").split())
    return f"{question} → {answer if len(answer) <= shown // 2 else answer[: shown // 2] + ' …'}"


def _show_list(entries: list[CatalogEntry], console: Console) -> None:
    heads = [("task", "an example", "bundled model")] if console.is_terminal else []
    show_rows(heads + [(each.name, example(each), verdict(each)) for each in entries], console)
    console.print(DATA, markup=False, highlight=False, soft_wrap=True)
