"""Data sets of reasoning-gym whose scorers give partial credit for junk.

Most scorers look for the right answer inside of the text, or count what agrees: a right answer with
something behind it gets a part of 1. Only 1 counts as right when a policy is evaluated, so a policy
that is trained by such scores may learn to be nearly right, or never to stop. So the reward of
these data sets is `exact` unless it is set (`task.reward`).

The names are measured (`tests/tasks/test_partial_credit.py`): more than 0 and less than 1 for a
right answer with junk behind it, for junk alone, or for nothing. The reward of a `composite` is its
parts'.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import Figures, MaskedReward, NoReward, as_number
from asyncrl.tasks.template import RIGHT

_NAMES = """
    acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf
    binary_alternation caesar_cipher chain_sum codeio color_cube_rotation composite count_bits
    count_primes countdown course_schedule cryptarithm emoji_mystery figlet_font
    fraction_simplification futoshiki gcd gsm_symbolic isomorphic_strings largest_island lcm
    leg_counting letter_counting letter_jumble list_functions mahjong_puzzle manipulate_matrix
    maze mini_sudoku modulo_grid number_filtering number_sequence palindrome_generation
    polynomial_equations power_function prime_factorization products propositional_logic puzzle24
    quantum_lock ransom_note rearc rotate_matrix rotten_oranges rubiks_cube rush_hour
    sentence_reordering simple_equations simple_geometry spell_backward string_manipulation
    string_splitting string_synthesis sudoku syllogism time_intervals tsumego
    word_sequence_reversal word_sorting
"""
PARTIAL_CREDIT = frozenset(_NAMES.split())
"""Names of data sets."""


def settled_reward(config: TaskConfig) -> Literal["exact", "score"]:
    """The reward that `task.reward` stands for.

    >>> [settled_reward(TaskConfig(name=name)) for name in ("rotate_matrix", "dice", "data")]
    ['exact', 'score', 'score']
    """
    if config.reward != "auto":
        return config.reward
    return "exact" if config.name in PARTIAL_CREDIT else "score"


def exactly(reward: Any) -> Any:
    """1 for a right answer and 0 for any other; a value that is not a finite number, or too large
    for a float, stays as it is.

    >>> exactly(0.4), exactly(1.5), exactly("no number")
    (0.0, 1.0, 'no number')
    """
    if isinstance(reward, Figures):
        return Figures(exactly(reward.reward), reward.figures)
    if isinstance(reward, MaskedReward):
        return MaskedReward(exactly(float(reward)), reward.errors)
    try:
        number = as_number(reward)
    except NoReward:
        return reward
    return float(number >= RIGHT) if math.isfinite(number) else reward
