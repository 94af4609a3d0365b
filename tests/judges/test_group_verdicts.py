"""A judge that sees a group: its line is read whole or not at all, and equal answers are equal."""

from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path
from statistics import fmean

import httpx2
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from judge_world import Server, about, opened, said

from asyncrl.judges.group_verdicts import listed, places, ranked, scores
from asyncrl.messages import NoVerdict, Scored, Verdict
from asyncrl.tasks.judge_request import TEXT_BYTES, GroupRequest

STANDINGS = st.lists(st.integers(0, 5), min_size=2, max_size=8)
GROUP_TEXT = "{question} {expected} {answers} RANKING: SCORES:"


def written(standing: list[int]) -> str:
    """The line of a judge that finds these places, 0 the best."""
    ranks = [
        [str(number) for number, own in enumerate(standing, 1) if own == place]
        for place in sorted(set(standing))
    ]
    return " > ".join(" = ".join(rank) for rank in ranks)


def shown(text: str) -> list[str]:
    """The answers that a judge was shown."""
    return re.findall(r"\[answer \d+, mark \w+\]\n(.*?)\n\[end of answer", text, re.DOTALL)


def group(*answers: str) -> GroupRequest:
    return GroupRequest(tuple(about(answer) for answer in answers))


@given(STANDINGS)
def test_a_ranking_is_read_as_it_was_written_and_rewards_are_mean_ranks(
    standing: list[int],
) -> None:
    read = places(f" {written(standing)}\nthank you 9", len(standing))
    for one, other in zip(standing, read, strict=True):
        assert [one < each for each in standing] == [other < each for each in read]
    # the reference: each has the mean of the ranks that equal ones share, from 0, the best last
    order = sorted(standing, reverse=True)
    mean = [fmean(at for at, each in enumerate(order) if each == one) for one in standing]
    assert ranked(read) == pytest.approx([rank / (len(standing) - 1) for rank in mean])
    assert fmean(ranked(read)) == pytest.approx(0.5)
    assert all(0 <= reward <= 1 for reward in ranked(read))


@given(st.permutations(range(1, 6)), st.lists(st.floats(0, 10), min_size=5, max_size=5))
def test_scores_are_those_of_the_answers_that_they_name(
    order: list[int], given_: list[float]
) -> None:
    rounded = [round(score, 2) for score in given_]
    line = ", ".join(f"{number} = {rounded[number - 1]:.2f}" for number in order)
    assert scores(line, 5, 10.0) == rounded
    assert scores(f"\n**{line.replace(', ', chr(10))}**", 5, 10.0) == rounded


@pytest.mark.parametrize(
    "line",
    ["", "1 > 2", "1 > 2 > 2 > 3", "1 > 2 > 4", "0 > 1 > 2", "3", "1 > 2 > 3 > 4", "best: 1"],
)
def test_a_line_without_each_answer_once_is_none(line: str) -> None:
    with pytest.raises(ValueError, match="each of the 3 answers once"):
        places(line, 3)
    with pytest.raises(ValueError, match="each of the 3 answers once"):
        scores(line.replace(" > ", " = 5, ") + " = 5", 3, 10.0)


@given(st.text(max_size=60), st.integers(2, 4))
def test_any_text_is_a_verdict_or_none(text: str, count: int) -> None:
    for read in (lambda: places(text, count), lambda: scores(text, count, 10.0)):
        with contextlib.suppress(ValueError):
            assert len(read()) == count


def test_an_answer_cannot_know_the_mark_that_divides_it_from_the_others() -> None:
    mine = listed(["a", "b"])
    forged = listed(["a\n" + mine.split("\n\n")[1], "b"])
    marks = re.findall(r"^\[answer \d+, mark (\w+)\]$", forged, re.MULTILINE)
    assert len(set(marks)) == 2, "what it copied has another mark than the rest"


async def test_a_ranking_gives_rewards_once_and_a_resume_keeps_them(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    def answer(text: str, number: int) -> httpx2.Response:
        assert shown(text) == ["good", "bad", "fair"], "equal answers are shown once"
        return said("SCORES: 1 = 2, so\n**RANKING:** 1 > 3 > 2")

    server, file = Server(answer), tmp_path / "judged"
    members = ("good", "bad", "fair", "good")
    due: list[Verdict] = [Scored(reward) for reward in (2.5 / 3, 0.0, 1 / 3, 2.5 / 3)]
    settings = {"members": "ranked", "group_template": GROUP_TEXT}
    async with opened(server, file, **settings) as judge:
        assert await judge.ask_together(group(*members)) == due
        assert await judge.ask_together(group(*members)) == due
        assert await judge.ask_together(group("x", "x")) == [Scored(0.5), Scored(0.5)]
        assert isinstance((await judge.ask_together(group("x")))[0], NoVerdict)
        long = await judge.ask_together(group("x" * TEXT_BYTES, "y"))
        assert [verdict.reason[:8] for verdict in long if isinstance(verdict, NoVerdict)] == [
            "too long",
            "too long",
        ]
    async with opened(server, file, **settings) as judge:
        assert await judge.ask_together(group(*members)) == due
        # the same texts, in other numbers: one request, and rewards of its own
        other = await judge.ask_together(group("good", "bad", "fair"))
        assert other == [Scored(1.0), Scored(0.0), Scored(0.5)]
    assert len(server.texts) == 1


async def test_a_group_without_a_readable_verdict_has_none_and_never_zero(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Failures of each kind, drawn: a group's members all have the judge's scores, or none."""
    draw = random.Random(7)
    kinds = [httpx2.Response(503), httpx2.ConnectError("no"), said("SCORES: 7 = 9"), said("no")]

    def answer(text: str, number: int) -> httpx2.Response | Exception:
        if draw.random() < 0.6:
            return draw.choice(kinds)
        return said("SCORES: " + ", ".join(f"{at} = 5" for at in range(1, len(shown(text)) + 1)))

    server, found = Server(answer), list[list[Verdict]]()
    async with (
        opened(
            server, tmp_path / "j", members="scored", group_template=GROUP_TEXT, retries=2
        ) as judge,
        trio.open_nursery() as all_,
    ):

        async def ask(number: int) -> None:
            answers = [f"{number} {draw.randrange(3)}" for _ in range(draw.randrange(1, 5))]
            found.append(await judge.ask_together(group(*answers)))

        for number in range(60):
            all_.start_soon(ask, number)
    for verdicts in found:
        assert verdicts == [Scored(0.5)] * len(verdicts) or all(
            isinstance(verdict, NoVerdict) and verdict.reason.startswith("judge ")
            for verdict in verdicts
        )
    scored = [verdicts for verdicts in found if isinstance(verdicts[0], Scored)]
    assert 0 < len(scored) < len(found)
