"""sql_tool.py: SQL that is executed while it is written (ReEx-SQL, arXiv 2505.12768).

A line is `{"prompt": the question, "schema": "CREATE TABLE …; INSERT …", "answer": a query}`. The
model may try queries in <sql>…</sql>, and sees their rows; <answer>…</answer> ends the episode. It
is right if its rows are those of the line's query, in any order, with their repetitions. The
authors also reward exploration, and search by trees after training."""

import re
import sqlite3
from collections import Counter
from collections.abc import Mapping
from typing import Any

from asyncrl.agents import Step

TRIES, ROWS, STEPS, WIDEST, HEAP = 6, 20, 500_000, 4096, 2**26
READS = {
    *(sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ),
    *(sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE),
}
WRONG = (sqlite3.Error, sqlite3.Warning, UnicodeError, ValueError, MemoryError)


def database(schema: str) -> sqlite3.Connection:
    """The line's tables, in memory. From here on queries read, and nothing else."""
    made = sqlite3.connect(":memory:")
    made.executescript(f"PRAGMA temp_store = MEMORY; PRAGMA hard_heap_limit = {HEAP}; {schema}")

    def allowed(action: int, _: str | None, name: str | None, *more: str | None) -> int:
        loads = action == sqlite3.SQLITE_FUNCTION and str(name).lower() == "load_extension"
        return sqlite3.SQLITE_OK if action in READS and not loads else sqlite3.SQLITE_DENY

    made.set_authorizer(allowed)
    made.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, WIDEST)
    return made


def rows(made: sqlite3.Connection, query: str, most: int) -> list[tuple[Any, ...]]:
    """The rows of a query, at most `most`. Raises one of WRONG, as where it takes too long."""
    ticks = iter(range(STEPS // 1000))
    made.set_progress_handler(lambda: next(ticks, None) is None, 1000)
    return made.execute(query).fetchmany(most)


class Sql:
    """A tool for queries, at most TRIES of them."""

    def reset(self, entry: Mapping[str, Any], seed: int) -> str:
        self._made, self._left = database(entry["schema"]), TRIES
        self._wanted = self._made.execute(entry["answer"]).fetchall()
        return f"{entry['schema']}\n{entry['prompt']}"

    def step(self, reply: str) -> Step:
        if final := re.search(r"<answer>(.*?)</answer>", reply, re.S):
            try:
                found = rows(self._made, final[1], len(self._wanted) + 1)
            except WRONG:
                return Step("", 0.0, True, failed="sql")
            return Step("", float(Counter(found) == Counter(self._wanted)), True)
        self._left -= 1
        tried = re.findall(r"<sql>(.*?)</sql>", reply, re.S)
        if not tried or not self._left:
            return Step("", 0.0, True)
        try:
            found = rows(self._made, tried[-1], ROWS)
        except WRONG as error:
            return Step(f"error: {error}", 0.0, False, failed="sql")
        return Step("\n".join(map(str, found)) or "no rows", 0.0, False)
