"""Texts that the bench of agents shows the bundled model are what its agents have it read."""

from __future__ import annotations

import json
import random
from pathlib import Path

import agents_learn

from asyncrl import config as configuration
from asyncrl.agents.examples import calculator, retry
from asyncrl.agents.examples.guess_the_number import Game
from asyncrl.bundled import bundled_model
from asyncrl.tasks import open_task
from asyncrl.tasks.text import Tokenizer


def test_a_shown_game_is_what_is_read_in_one(tmp_path: Path) -> None:
    bundled_model.write_tokenizer(tmp_path)
    tokenizer, turns = Tokenizer(tmp_path, chat=True), agents_learn.games(random.Random(0))
    found = 0
    for first, said in (next(turns) for _ in range(50)):
        turned = said.split(bundled_model.END)
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
        called, _, answered = said.partition(bundled_model.END)
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


def test_a_shown_conversation_of_tries_is_what_is_read_in_one(tmp_path: Path) -> None:
    bundled_model.write_tokenizer(tmp_path)
    tokenizer = Tokenizer(tmp_path, chat=True)
    task = open_task(configuration.load(agents_learn.RUN_TOML, [], {}).task, 0)
    conversations = agents_learn.tries(random.Random(0), task, agents_learn.LISTENS)
    answers = {task.prompt("train", n): task.answer("train", n) for n in range(task.size("train"))}
    ended = 0
    for first, said in (next(conversations) for _ in range(100)):
        replies = said.split(f"{bundled_model.END}{retry.AGAIN}\n")
        assert len(replies) <= retry.TRIES and answers[first] not in replies[:-1]
        assert {len(reply) for reply in replies} == {len(answers[first])}
        chat = [{"role": "user", "content": first}]
        for reply in replies[:-1]:
            chat += [
                {"role": "assistant", "content": reply},
                {"role": "user", "content": retry.AGAIN},
            ]
        assert tokenizer.render(chat) + replies[-1] == first + said
        ended += replies[-1] == answers[first]
    assert 35 < ended < 70, "about half: three tries, each right one time in five"
