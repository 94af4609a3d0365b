"""Checks that an answer looks honest, for scorers that evaluate it. Pure.

Nine scorers of reasoning-gym pass the answer to `eval`, four of them to read a list and five to
read a formula. A program passed to them awards itself. So each answer is checked first, and one
that is neither counts as no answer. This is not a sandbox (that is `asyncrl.sandbox`, in which they
still run), but the reason why a model cannot learn to award itself.
"""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections.abc import Callable
from itertools import pairwise

Screen = Callable[[str], bool]
"""True for the text of an honest answer, right or wrong."""
TEXT = 100_000
"""Characters of the longest answer that is checked; Python's parser is not made for more."""
_NAMES = """
    Abs Add Float Integer LambertW Mul Pow Rational abs acos acosh acot acsc asec asin asinh atan
    atan2 atanh cbrt ceiling cos cosh cot coth csc csch erf erfc erfi exp expint factorial floor
    gamma log ln max min pow round sec sech sign sin sinc sinh sqrt tan tanh Ci Ei Li Si
"""
FUNCTIONS = frozenset(_NAMES.split())
"""Functions of sympy and Python that a formula may call: they compute, and do nothing else."""
_OPERATORS = frozenset(["+", "-", "*", "/", "//", "**", "%", "(", ")", ",", "!", "!!", "^"])
_BEFORE = _OPERATORS - {")", "!", "!!"}
"""Behind these a bracket calls nothing."""
_LAYOUT = frozenset([tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER])


def is_literal(text: str) -> bool:
    """True for a Python literal, and for a text that Python cannot evaluate at all.

    >>> [is_literal(text) for text in ("[[0, 1], [1, 0]]", "0 1\\n1 0", "[].append(1)", "answer")]
    [True, True, False, False]
    """
    # as `eval` reads it, and as a scorer does that strips it first
    return len(text) <= TEXT and all(map(_is_literal, {text.lstrip(" \t"), text.strip()}))


def is_arithmetic(text: str) -> bool:
    """True for numbers, names, operators and calls of FUNCTIONS. A name that is not called is a
    symbol: it does nothing.

    >>> [is_arithmetic(text) for text in ("(5 + 1)*4", "x**2/2 + C", "exp(x)", "exit(0)", "f.g")]
    [True, True, True, False, False]
    """
    if len(text) > TEXT:
        return False
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text.strip()).readline))
    except (tokenize.TokenError, SyntaxError):
        return False
    words = [token.string for token in tokens if token.string.strip()]
    return all(map(_allowed, tokens)) and all(
        word in FUNCTIONS or word in _BEFORE for word, after in pairwise(words) if after == "("
    )


def _is_literal(text: str) -> bool:
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return True
    except (MemoryError, RecursionError):
        return False
    try:
        ast.literal_eval(tree)
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        return False
    return True


def _allowed(token: tokenize.TokenInfo) -> bool:
    match token.type:
        case tokenize.NUMBER:
            return True
        case tokenize.NAME:
            return "__" not in token.string and not keyword.iskeyword(token.string)
        case tokenize.OP | tokenize.ERRORTOKEN:
            return token.string in _OPERATORS or token.string.isspace()
        case _:
            return token.type in _LAYOUT
