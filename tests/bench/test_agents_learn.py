"""Texts that the bench of agents shows the bundled model are what its agents have it read."""

from __future__ import annotations

import json
import random
from pathlib import Path

import agents_learn

from asyncrl.agents.examples import calculator
from asyncrl.agents.examples.guess_the_number import Game
from asyncrl.tasks.text import Tokenizer
from asyncrl.training import bundled


def test_a_shown_game_is_what_is_read_in_one(tmp_path: Path) -> None:
    bundled.write_tokenizer(tmp_path)
    tokenizer, turns = Tokenizer(tmp_path, chat=True), agents_learn.games(random.Random(0))
    found = 0
    for first, said in (next(turns) for _ in range(50)):
        turned = said.split(bundled.END)
        guesses = [turned[0], *(turn.split("\n")[1] for turn in turned[1:])]
        replies = [turn.split("\n")[0] for turn in turned[1:]]
        game, number = Game(), None
        for answer in range(1, agents_learn.NUMBERS + 1):
            prompt = game.reset({"prompt": first.rstrip("\n"), "answer": answer}, 0)
            steps = [game.step(guess) for guess in guesses]
            if [step.text for step in steps[:-1]] == replies and steps[-1].done:
                number = answer
        assert number is not None, said
        found += int(guesses[-1]) == number
        chat = [{"role": "user", "content": prompt}]
        for guess, reply in zip(guesses, replies, strict=False):
            chat += [{"role": "assistant", "content": guess}, {"role": "user", "content": reply}]
        assert tokenizer.render(chat) + guesses[-1] == first + said
    assert 5 < found < 30, "about three in ten"


def test_a_shown_call_is_what_is_read_in_one(tmp_path: Path) -> None:
    tools = agents_learn.tools_text(tmp_path)
    tokenizer, draw = Tokenizer(tmp_path, chat=True), random.Random(0)
    questions = agents_learn.sums(draw)
    shown = questions[: -agents_learn.HELD_OUT]
    assert len({*questions}) == 243 and not {*shown} & {*questions[-agents_learn.HELD_OUT :]}
    conversations = agents_learn.calls(draw, tools, shown)
    right = 0
    for first, said in (next(conversations) for _ in range(100)):
        called, _, answered = said.partition(bundled.END)
        function = json.loads(called.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        result, answer = answered.split("\n")
        assert result == answer
        assert result == calculator.calculate(function["name"], json.dumps(function["arguments"]))
        question = first.removeprefix(tools)
        chat = [
            {"role": "user", "content": question},  # with its newline, as agents are given it
            {"role": "assistant", "content": None, "tool_calls": [{"function": function}]},
            {"role": "tool", "content": result},
        ]
        text = tokenizer.render(chat, calculator.TOOLS)  # type: ignore[arg-type]
        assert text + answer == first + said
        right += (question.strip(), answer) in shown
    assert 33 < right < 63, "about 47: the right tool one time in five, and a third of the others"
