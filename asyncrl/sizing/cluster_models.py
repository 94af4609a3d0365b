"""Models of the parts of a cluster: engine, lengths of responses, trainer, network, verdicts.
Invariant: there is one of each, and it consists of numbers with units.

    decode     a decode step gives each busy slot one token; its milliseconds depend on how many
               are busy, and lie on lines through measured points
    prefill    an engine reads a request's context before the request begins, and decodes nothing
               meanwhile
    KV room    a request begins when its final number of tokens fits beside those of others

All of it is a TOML file (`read_models`, `write_models`; docs/sizing.md).
"""

from __future__ import annotations

import math
import tomllib
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Annotated

import msgspec
import tomli_w

from asyncrl.config import ConfigError
from asyncrl.config.errors import usable
from asyncrl.engines.draws import stream
from asyncrl.files import read_regular, write_whole
from asyncrl.words import beyond_reading

_NORMAL = NormalDist()
BYTES = 2**20
"""Bytes of a file of models, at most."""

Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e15)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, lt=1e15)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Devices = Annotated[int, msgspec.Meta(ge=1, lt=2**53)]
GroupSize = Annotated[int, msgspec.Meta(ge=2, lt=2**20)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Quantiles = Annotated[list[Positive], msgspec.Meta(min_length=2)]


class ModelStruct(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False
):
    """A table of numbers; a key that it does not have is an error."""


class EngineModel(ModelStruct, frozen=True):
    """An engine of `devices` devices.

    `decode_ms` are points (busy slots, milliseconds of a decode step), the slots rising and the
    milliseconds not falling; between points, before the first and behind the last a line goes
    through the two nearest. One point is the same for any number of slots. It reads
    `prefill_tokens_per_s` tokens a second (0: reading takes no time). Its cache holds `kv_tokens`
    tokens (0: those of all its slots).
    """

    decode_ms: Annotated[list[tuple[NotNegative, Positive]], msgspec.Meta(min_length=1)]
    prefill_tokens_per_s: NotNegative = 0.0
    kv_tokens: Count = 0
    devices: Devices = 1

    def __post_init__(self) -> None:
        slots = [at for at, _ in self.decode_ms]
        times = [ms for _, ms in self.decode_ms]
        if slots != sorted(set(slots)) or times != sorted(times):
            raise ValueError("decode_ms must have rising slots, and milliseconds that do not fall")
        if self.decode_s(1) <= 0:
            raise ValueError("decode_ms gives one busy slot no time; give a point at 1 slot")

    @classmethod
    def additive(cls, base_s: float, slot_s: float, *, prefill: float = 0.0) -> EngineModel:
        """An engine that reads its weights and then each slot's cache: `base_s` seconds, and
        `slot_s` for each busy slot. `prefill` tokens are read a second."""
        points = [(float(n), 1e3 * (base_s + n * slot_s)) for n in (1, 1001)]
        return cls(decode_ms=points, prefill_tokens_per_s=prefill)

    @classmethod
    def roofline(cls, memory_s: float, slot_s: float, *, prefill: float = 0.0) -> EngineModel:
        """An engine that reads its weights in `memory_s` seconds, or, if more slots are busy
        than fit into that time, takes `slot_s` for each. Both are more than 0."""
        ridge = memory_s / slot_s
        points = [(0.0, 1e3 * memory_s), (ridge, 1e3 * memory_s), (2 * ridge, 2e3 * memory_s)]
        return cls(decode_ms=points, prefill_tokens_per_s=prefill)

    def decode_s(self, busy: float) -> float:
        """Seconds of a decode step with `busy` slots busy, one at least.

        >>> engine = EngineModel(decode_ms=[(1, 10.0), (11, 20.0)])
        >>> engine.decode_s(6), engine.decode_s(21)
        (0.015, 0.03)
        """
        points = self.decode_ms
        if len(points) == 1:
            return points[0][1] / 1e3
        at = min(max(1, bisect_left(points, (busy, 0.0))), len(points) - 1)
        (left, low), (right, high) = points[at - 1], points[at]
        return (low + (busy - left) / (right - left) * (high - low)) / 1e3

    @property
    def prefill_token_s(self) -> float:
        """Seconds in which it reads a token."""
        return 1 / self.prefill_tokens_per_s if self.prefill_tokens_per_s else 0.0


class LengthModel(ModelStruct, frozen=True):
    """Tokens of prompts and responses. Responses are lognormal of that `mean` and `sigma` (of the
    logarithm) before they are cut by the run's budget; or, if there are `quantiles`, the i-th of
    n + 1 of these is that of i / n, with lines between. `prompt` is the tokens of each prompt."""

    mean: Positive = 1000.0
    sigma: NotNegative = 1.0
    quantiles: Quantiles | None = None
    prompt: Count = 0

    def __post_init__(self) -> None:
        if self.quantiles is not None and self.quantiles != sorted(self.quantiles):
            raise ValueError("quantiles must not fall")
        if self.sigma > 10:
            raise ValueError("sigma is of the logarithm, and at most 10")

    def drawn(self, seed: int, most: int) -> Callable[[int], int]:
        """Lengths of responses by their keys, from 1 to `most` tokens."""
        middle = math.log(self.mean) - self.sigma**2 / 2

        def length(key: int) -> int:
            share = (stream(seed, key) + 1) / (2**64 + 2)
            return min(most, max(1, round(self._at(share, middle))))

        return length

    def _at(self, share: float, middle: float) -> float:
        if self.quantiles is not None:
            position, last = share * (len(self.quantiles) - 1), len(self.quantiles) - 2
            low = min(last, int(position))
            a, b = self.quantiles[low : low + 2]
            return a + (position - low) * (b - a)
        return math.exp(min(40.0, middle + self.sigma * _NORMAL.inv_cdf(share)))


class TrainerModel(ModelStruct, frozen=True):
    """A trainer: one device takes `token_us` microseconds for a response token, several share the
    tokens evenly, and the end of a step takes `step_s` seconds whatever their number, as a
    micro-batch takes `batch_s` beside its tokens."""

    token_us: NotNegative
    step_s: NotNegative = 0.0
    batch_s: NotNegative = 0.0


class NetworkModel(ModelStruct, frozen=True):
    """The transfer of weights: a publication takes `publication_s` seconds, and those in which
    `gigabytes` go at `gigabytes_per_s`, while engines decode. A new version then stops all decoding
    of an engine for `swap_s`."""

    publication_s: NotNegative = 0.02
    gigabytes: NotNegative = 0.0
    gigabytes_per_s: Positive = 1.0
    swap_s: NotNegative = 0.0

    @property
    def send_s(self) -> float:
        return self.publication_s + self.gigabytes / self.gigabytes_per_s


class VerdictModel(ModelStruct, frozen=True):
    """A verdict takes `seconds`. The share `accepted` of groups has rewards that differ, so
    that they pass the filter; or, if there are points `accepted_of` (rollouts of
    a group, share), the share on the line through them, and behind the last that of the last."""

    seconds: NotNegative = 1.0
    accepted: Share = 1.0
    accepted_of: Annotated[list[tuple[GroupSize, Share]], msgspec.Meta(min_length=1)] | None = None

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.accepted_of or []]
        if sizes != sorted(set(sizes)):
            raise ValueError("accepted_of must have rising sizes of groups")

    def share(self, group_size: int) -> float:
        """The share of groups of `group_size` rollouts that pass the filter.

        >>> verdict = VerdictModel(accepted_of=[(2, 0.2), (6, 0.6)])
        >>> verdict.share(4), verdict.share(8), VerdictModel(accepted=0.3).share(4)
        (0.4, 0.6, 0.3)
        """
        points = self.accepted_of
        if points is None:
            return self.accepted
        at = bisect_left(points, (group_size, 0.0))
        if at == len(points) or at == 0:
            return points[min(at, len(points) - 1)][1]
        (left, low), (right, high) = points[at - 1], points[at]
        return low + (group_size - left) / (right - left) * (high - low)


class ClusterModel(ModelStruct, frozen=True):
    """The parts of a cluster."""

    engine: EngineModel
    length: LengthModel
    trainer: TrainerModel
    network: NetworkModel = NetworkModel()
    verdict: VerdictModel = VerdictModel()


def read_models(path: Path) -> ClusterModel:
    """The models in a TOML file. Raises ConfigError."""
    try:
        tree = tomllib.loads(read_regular(path, BYTES).decode())
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); give a file of models, as `asyncrl "
            "calibrate` writes one."
        ) from None
    except (ValueError, RecursionError) as error:  # no TOML, or no UTF-8
        if beyond_reading(error):
            raise ConfigError(
                f"{path}: this is not TOML that can be read: a number in it has too many digits."
            ) from None
        raise ConfigError(f"{path}: this is not TOML: {error}.") from None
    try:
        models = msgspec.convert(tree, ClusterModel)
        _refuse_infinite(tree)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{path}: these are not models: {error}.") from None
    return models


def _refuse_infinite(tree: object, name: str = "") -> None:
    """Raise ValueError if a number is not finite."""
    match tree:
        case dict():
            for key, value in tree.items():
                _refuse_infinite(value, f"{name}.{key}" if name else str(key))
        case list():
            for value in tree:
                _refuse_infinite(value, name)
        case float() if not math.isfinite(tree):
            raise ValueError(f"{name} is {tree}, and must be a finite number")


UNITS = {
    "engine": "decode_ms: points of busy slots and milliseconds of a decode step; kv_tokens, 0: all"
    " slots'",
    "length": "tokens of responses (lognormal, or measured quantiles) and of prompts",
    "trainer": "token_us: microseconds of one device for a response token; step_s: seconds",
    "network": "seconds and gigabytes of a publication; swap_s: decoding stops in engines",
    "verdict": "seconds of a verdict; accepted: the share of groups whose rewards differ;"
    " accepted_of: by their size",
}


def render_models(models: ClusterModel, notes: list[str] | None = None) -> str:
    """The text of a file of models, with `notes` as comments at its head."""
    tree = msgspec.to_builtins(models)
    parts = [f"# {note}\n" for note in notes or []]
    for name, table in tree.items():
        kept = {key: value for key, value in table.items() if value is not None}
        parts.append(f"\n# {UNITS[name]}\n" + tomli_w.dumps({name: kept}))
    return "".join(parts)


def write_models(models: ClusterModel, path: Path, notes: list[str]) -> None:
    """Write a file of models, whole or not at all. Raises ConfigError."""
    with usable(path, "written"):
        write_whole(path, render_models(models, notes))
