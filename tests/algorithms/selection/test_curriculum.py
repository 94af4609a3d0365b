"""Each choice selects from toy populations; it is a function of the state; and it
leaves no prompt out for good."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_world import Play, solving

from asyncrl.algorithms.selection.curriculum import (
    Curriculum,
    Difficulty,
    InOrder,
    NextPrompt,
    PromptOrder,
    Unsolved,
)
from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.config.fields import FIELDS
from asyncrl.config.selection_names import CURRICULA

ALL = [1.0, 1.0]
SOME = [1.0, 0.0]
NONE = [0.0, 0.0]
results = st.lists(st.sampled_from([ALL, ALL, SOME, NONE]), min_size=1, max_size=30)
seeds = st.integers(0, 2**63 - 1)
names = st.sampled_from(sorted(CURRICULA))


def order(size: int, seed: int, epoch: int) -> list[int]:
    """The order of an epoch, as it always was."""
    items = list(range(size))
    Random(f"{seed}/{epoch}").shuffle(items)
    return items


def named(name: str, size: int, seed: int = 0, epochs: int = 0) -> Curriculum:
    return CURRICULA.find(name)(PromptOrder(size, seed=seed, epochs=epochs))


def test_run_toml_has_these_names() -> None:
    assert FIELDS["task.curriculum"].named == CURRICULA.named


# ---------------------------------------------------------------------------------------- in order


@given(st.integers(1, 20), seeds, st.integers(1, 3), st.integers(0, 5))
def test_in_order_each_epoch_has_each_prompt_once_and_the_seed_decides_when(
    size: int, seed: int, epochs: int, ahead: int
) -> None:
    play = Play(InOrder(PromptOrder(size, seed=seed, epochs=epochs)), lambda item, at: ALL, ahead)
    assert play.run(10**6) == [
        prompt_index for epoch in range(epochs) for prompt_index in order(size, seed, epoch)
    ]
    assert play.history.cursor == size * epochs


def test_a_stream_without_an_end_goes_on() -> None:
    assert len(Play(named("in_order", 3), solving([0.5] * 3)).run(100)) == 100


@pytest.mark.explore
def test_a_long_stream_takes_no_more_memory() -> None:
    stream = PromptOrder(1000, seed=0, epochs=0)
    tracemalloc.start()
    for epoch in range(200):
        stream.prompt_index(1000 * epoch)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100_000, "four orders of 8 bytes for each prompt"


# ---------------------------------------------------------------------------------------- unsolved


def test_what_everybody_solved_rests_for_two_epochs() -> None:
    """Items 0 and 1 are solved by all, 2 by some, 3 by none."""
    play = Play(named("unsolved", 4, epochs=7), lambda item, at: [ALL, ALL, SOME, NONE][item])
    admitted = play.run(10**6)
    by_epoch = [{0, 1, 2, 3}, {2, 3}, {2, 3}, {0, 1, 2, 3}, {2, 3}, {2, 3}, {0, 1, 2, 3}]
    assert admitted == [
        prompt_index
        for epoch, items in enumerate(by_epoch)
        for prompt_index in order(4, 0, epoch)
        if prompt_index in items
    ]


def test_what_is_not_solved_any_more_comes_back_for_good() -> None:
    """Item 0 is solved by all at its first visit alone."""
    play = Play(
        named("unsolved", 2, epochs=6), lambda item, at: ALL if item == 0 and at < 2 else SOME
    )
    assert Counter(play.run(10**6)) == {0: 4, 1: 6}


@given(st.integers(1, 8), seeds, results, st.integers(0, 6), st.integers(0, 3))
def test_no_unsolved_prompt_waits_longer_than_from_one_epoch_to_the_next(
    size: int, seed: int, outcomes: list[list[float]], ahead: int, rest: int
) -> None:
    play = Play(
        Unsolved(PromptOrder(size, seed=seed, epochs=0), rest),
        lambda item, at: outcomes[at % len(outcomes)],
        ahead,
    )
    waits = Counter[int]()
    for _ in range(60):
        before = play.history.cursor
        assert play.step()
        assert play.history.cursor <= before + (rest + 2) * size, (
            "where all are solved, one is found all the same"
        )
        for prompt_index in range(size):
            seen = play.history.seen.get(prompt_index)
            if prompt_index == play.admitted[-1] or (seen is not None and seen.easy):
                waits[prompt_index] = 0
            else:
                waits[prompt_index] += 1
        assert max(waits.values()) <= 2 * size - 2


@given(st.integers(1, 8), seeds, results, st.integers(0, 3))
def test_an_epoch_has_all_that_do_not_rest(
    size: int, seed: int, outcomes: list[list[float]], rest: int
) -> None:
    play = Play(
        Unsolved(PromptOrder(size, seed=seed, epochs=6), rest),
        lambda item, at: outcomes[at % len(outcomes)],
    )
    admitted, rests, at = play.run(10**6), dict.fromkeys(range(size), 0), 0
    for epoch in range(6):
        for prompt_index in order(size, seed, epoch):
            if rests[prompt_index]:
                rests[prompt_index] -= 1
                continue
            assert admitted[at] == prompt_index
            rests[prompt_index] = rest * (outcomes[at % len(outcomes)] == ALL)
            at += 1
    assert at == len(admitted)


# -------------------------------------------------------------------------------------- difficulty


def test_the_half_solved_are_chosen_most() -> None:
    """A third of the prompts is never solved, a third always, and a third by half of the
    rollouts."""
    chances = [0.0] * 40 + [1.0] * 40 + [0.5] * 40
    admitted = Play(named("difficulty", 120), solving(chances), ahead=16).run(6000)[1500:]
    kinds = Counter(prompt_index // 40 for prompt_index in admitted)
    assert kinds[2] / len(admitted) > 0.6, kinds
    assert set(admitted) == set(range(120)), "and the others are looked at again now and then"
    in_order = Play(named("in_order", 120), solving(chances), ahead=16).run(6000)[1500:]
    with_signal = [
        sum(0 < chances[prompt_index] < 1 for prompt_index in items) / 4500
        for items in (admitted, in_order)
    ]
    assert with_signal[0] > 1.8 * with_signal[1]


def test_a_prompt_that_has_become_half_solved_is_found() -> None:
    """Prompt 7 is never solved at first, then by half; all others are always solved."""
    play = Play(
        named("difficulty", 40),
        lambda item, at: ALL if item != 7 else NONE if at < 600 else SOME,
        ahead=4,
    )
    before, after = Counter(play.run(600)), Counter(play.run(1200)[600:])
    assert before[7] < 600 / 40 * 2
    assert after[7] > 600 / 40 * 2


def test_what_is_little_known_is_tried_now_and_then() -> None:
    """Of prompt 0 it is known that half of the rollouts solve it, of prompt 1 nothing: a fair draw
    of its chance is further from a half four times in five, and so it is chosen a fifth of the
    time."""
    history = History()
    history.admit(0, 0)
    history.record(0, SOME * 8, 16)
    chosen = Counter(named("difficulty", 2, seed).next(history, ()) for seed in range(600))
    assert set(chosen) == {NextPrompt(0, 2), NextPrompt(1, 2)}
    reference, spread = Random(7), lambda p: p * (1 - p)
    expected = (
        sum(spread(reference.betavariate(9, 9)) > spread(reference.random()) for _ in range(20_000))
        / 20_000
    )
    assert 0.8 < expected < 0.83
    assert chosen[NextPrompt(0, 2)] / 600 == pytest.approx(expected, abs=0.05)


def test_what_is_live_is_not_chosen_again_where_there_is_another() -> None:
    play = Play(named("difficulty", 4), lambda item, at: SOME, ahead=3)
    admitted = play.run(200)
    assert all(len(set(admitted[i : i + 4])) == 4 for i in range(197))
    assert len(Play(named("difficulty", 2), lambda item, at: SOME, ahead=5).run(50)) == 50, (
        "where all are live, one is"
    )


@given(st.integers(1, 7), seeds, results, st.integers(1, 4), st.integers(0, 3))
def test_no_prompt_waits_longer_than_patience_and_one_epoch_for_each_other(
    size: int, seed: int, outcomes: list[list[float]], among: int, patience: int
) -> None:
    stream = PromptOrder(size, seed=seed, epochs=0)
    play = Play(Difficulty(stream, among, patience), lambda item, at: outcomes[at % len(outcomes)])
    last = dict.fromkeys(range(size), -1)
    for _ in range(120):
        epoch = play.history.cursor // size
        assert play.step()
        last[play.admitted[-1]] = epoch
        # The epoch itself may have passed the prompt's place already.
        assert all(epoch - seen <= patience + size for seen in last.values())


@pytest.mark.parametrize("patience", [1, 2, 5])
def test_a_prompt_is_overdue_when_so_many_epochs_have_passed_without_it(patience: int) -> None:
    """Of two prompts all rollouts solve prompt 0, and half of them prompt 1. Prompt 0 was admitted
    in the first epoch, or never."""
    for cursor, due in [(2, patience + 1), (0, patience)]:
        choice, history = Difficulty(PromptOrder(2, seed=0, epochs=0), 2, patience), History()
        history.admit(0, cursor)
        history.record(0, ALL * 100, 100 * len(ALL))
        history.admit(1, 2)
        history.record(1, SOME * 100, 100 * len(SOME))
        chosen = [choice.next(history, ())]
        while chosen[-1] is not None and chosen[-1].prompt_index == 1:
            history.admit(*chosen[-1])
            chosen.append(choice.next(history, ()))
        assert chosen[-1] == NextPrompt(0, 2 * due + 2), "in the epoch `due`, from 0"


def test_overdue_ones_take_no_more_than_their_share() -> None:
    """All but one in ten are solved by all: were it not for patience, these would hardly ever be
    chosen."""
    chances = [0.5] * 20 + [1.0] * 180
    admitted = Play(named("difficulty", 200), solving(chances), ahead=8).run(20_000)[10_000:]
    easy = Counter(prompt_index for prompt_index in admitted if prompt_index >= 20)
    assert len(easy) == 180
    half = sum(prompt_index < 20 for prompt_index in admitted) / len(admitted)
    assert half > 0.2, "twice their share at least"


# --------------------------------------------------------------------------------------------- all


@given(names, st.integers(1, 9), seeds, st.integers(0, 5), st.integers(0, 40), st.integers(0, 40))
def test_a_resumed_run_chooses_alike(
    name: str, size: int, seed: int, ahead: int, before: int, after: int
) -> None:
    outcome = solving([prompt_index / max(1, size - 1) for prompt_index in range(size)])
    through, stopped = (Play(named(name, size, seed), outcome, ahead) for _ in range(2))
    whole = through.run(before + after)
    stopped.run(before)
    resumed = Play(
        named(name, size, seed),
        outcome,
        ahead,
        msgspec.msgpack.decode(msgspec.msgpack.encode(stopped.history), type=History),
    )
    resumed.live, resumed.admitted = stopped.live, stopped.admitted
    assert resumed.run(after) == whole[before:]


@given(names, st.integers(1, 9), seeds, st.integers(1, 4), st.integers(0, 12))
def test_all_end_with_the_epochs_and_never_before_each_prompt_had_its_chance(
    name: str, size: int, seed: int, epochs: int, ahead: int
) -> None:
    play = Play(named(name, size, seed, epochs), solving([0.5] * size), ahead)
    admitted = play.run(10**6)
    assert size <= 4 * len(admitted) <= 4 * size * epochs
    assert not play.step()


def test_asking_changes_nothing() -> None:
    for name in CURRICULA:
        play = Play(named(name, 9), solving([0.5] * 9))
        play.run(30)
        choice = named(name, 9)
        assert (
            len(
                {play.choice.next(play.history, ()) for _ in range(3)}
                | {choice.next(play.history, ())}
            )
            == 1
        )


def test_the_seed_decides() -> None:
    for name in CURRICULA:
        assert (
            len(
                {
                    tuple(Play(named(name, 30, seed), solving([0.5] * 30)).run(30))
                    for seed in range(5)
                }
            )
            == 5
        )


@pytest.mark.parametrize("name", sorted(CURRICULA))
def test_one_prompt_is_a_stream_too(name: str) -> None:
    assert named(name, 1).next(History(), ()) == NextPrompt(0, 1)
