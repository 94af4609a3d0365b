"""Programs of a lane: prefill and decode, in the fastest form on this machine. Invariant: every
program computes the same as the model's own forward pass, checked at the start.

The steps are traced once (torch.jit). A decode step of the stock model code then runs no Python, in
which a small model spends most of its time, and does not hold the interpreter's lock. Where a trace
does not agree with the model, the untraced module is run.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from asyncrl.engines.embedded.cache import ATTENTION, set_attention
from asyncrl.engines.embedded.kernels import KERNEL_ATTENTION, load_kernels, replace_norms
from asyncrl.engines.embedded.linears import packable, packed, packed_layers
from asyncrl.engines.embedded.model_steps import KernelSteps, ModelSteps, SeenPrefillStep

_log = logging.getLogger(__name__)
Program = Callable[..., Any]


@contextmanager
def computing() -> Iterator[None]:
    """The mode in which programs are called: without gradients, and without the passes of
    torch.jit, which fuse nothing on a CPU, take a quarter of a second and would let the first calls
    differ from later ones."""
    with torch.inference_mode(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
        yield


def new_cache(model: PreTrainedModel, slots: int, context_tokens: int) -> list[Tensor]:
    """Zeroed cache tensors as `cache` lays them out, keys and values alternating, of the shapes
    that the model's own cache shows."""
    past = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.zeros(1, 1, dtype=torch.long), past_key_values=past, use_cache=True)
    cache = []
    for layer in past.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None or keys.dim() != 4:
            raise ValueError(
                f"{type(model).__name__} caches more than keys and values; the embedded "
                "engine cannot decode with it"
            )
        cache.append(
            torch.zeros(slots, keys.shape[1], keys.shape[3], context_tokens, dtype=keys.dtype)
        )
        cache.append(
            torch.zeros(slots, values.shape[1], context_tokens, values.shape[3], dtype=values.dtype)
        )
    return cache


class Programs:
    """Prefill and decode for `model`, whose attention this replaces: `decode(rows)`, `prefill` and
    `onward` are callables with the signatures of the methods of `ModelSteps`, and `seen` one with
    that of `SeenPrefillStep.forward`. Call `repack` after every change of the parameters. With
    `compile`, the compiled pieces are used where there is a compiler and the model is float32.
    `packed_from` is the smallest number of rows for which packed linear layers are used; None
    measures it. With `records`, decoding records the rows' experts."""

    def __init__(
        self,
        model: PreTrainedModel,
        cache: Sequence[Tensor],
        *,
        compile: bool,
        packed_from: int | None,
        records: bool = False,
    ) -> None:
        slots = int(cache[0].shape[0])
        trial = _Trial(model, cache)
        kernel = compile and plain_float32(model) and load_kernels()
        if kernel:
            replace_norms(model)
        set_attention(model, KERNEL_ATTENTION if kernel else ATTENTION)
        self.seen: Program = SeenPrefillStep(model).eval()
        steps = partial(KernelSteps if kernel else ModelSteps, records=records)
        self._plain = self._fast = _Form(steps(model), trial)
        self.packed_from = slots + 1 if packed_from is None else packed_from
        if plain_float32(model) and packable() and (packed_from is None or packed_from <= slots):
            fast = _Form(steps(packed(model, slots)), trial)
            if packed_from is None:
                self.packed_from = _crossing(self._plain, fast, trial, slots)
            if self.packed_from <= slots:
                self._fast = fast

    @property
    def prefill(self) -> Program:
        return self._fast.prefill

    @property
    def onward(self) -> Program:
        return self._fast.onward

    def decode(self, rows: int) -> Program:
        return (self._fast if rows >= self.packed_from else self._plain).decode

    def repack(self) -> None:
        self._fast.repack()


def plain_float32(model: PreTrainedModel) -> bool:
    """True if all parameters are float32 in the memory of a CPU."""
    return all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())


class _Form:
    """The programs over one form of the model."""

    def __init__(self, steps: ModelSteps, trial: _Trial) -> None:
        self._layers = packed_layers(steps.model)
        self._take(steps.eval())
        trial.check(self)
        try:
            self._take(_traced(steps, trial.arguments()))
            trial.check(self)
        except (RuntimeError, ValueError) as error:
            _log.warning(
                "%s runs untraced, which is slower: %s",
                type(steps.model).__name__,
                str(error).splitlines()[0],
            )
            self._take(steps)

    def _take(self, steps: Any) -> None:
        self._steps: nn.Module = steps
        self.decode: Program = steps.decode
        self.prefill: Program = steps.prefill
        self.onward: Program = steps.onward

    def repack(self) -> None:
        for name, layer in self._layers:
            layer.packed = layer.repacked()
            if isinstance(self._steps, torch.jit.ScriptModule):
                self._steps.model.get_submodule(name).packed = layer.packed


class _Trial:
    """A few tokens, and the model's own output for them before its attention is replaced."""

    def __init__(self, model: PreTrainedModel, cache: Sequence[Tensor]) -> None:
        self._cache = cache
        slots, context = int(cache[0].shape[0]), int(cache[1].shape[2])
        self.rows = min(2, slots)
        embeddings = model.get_input_embeddings()
        assert isinstance(embeddings, nn.Embedding)
        tokens = min(7, context)
        self._ids = (
            torch.arange(self.rows * tokens).reshape(self.rows, tokens) * 31 + 7
        ) % embeddings.num_embeddings
        with torch.no_grad():
            self._log_probabilities = (
                model(input_ids=self._ids).logits[:, -1].float().log_softmax(-1)
            )
        self._tolerance = 1e-3 if model.dtype == torch.float32 else 0.1

    def decode_arguments(self, rows: int) -> tuple[Tensor, ...]:
        """Arguments with a different number of columns than `check` uses, so that the check detects
        a trace with a fixed shape."""
        columns = min(64, self._cache[1].shape[2])
        positions = torch.full((rows,), columns - 1)
        uniforms = torch.full((rows,), 0.5, dtype=torch.float64)
        return (
            torch.zeros(rows, dtype=torch.long),
            positions,
            torch.zeros(rows, dtype=torch.long),
            torch.arange(columns),
            torch.ones(rows),
            uniforms,
            *self._cache,
        )

    def arguments(self) -> dict[str, tuple[Tensor, ...]]:
        """Arguments of each step for its trace."""
        return {
            "decode": self.decode_arguments(self.rows),
            "prefill": self._prefill_arguments(),
            "onward": self._onward_arguments(),
        }

    def _prefill_arguments(self) -> tuple[Tensor, ...]:
        """Arguments without a dimension of size 1, which a trace would treat as constant."""
        twice = torch.zeros(2, dtype=torch.long)
        return torch.zeros(2, 3, dtype=torch.long), twice, twice, *self._cache

    def _onward_arguments(self) -> tuple[Tensor, ...]:
        """As `_prefill_arguments`, for tokens after the first."""
        columns = torch.arange(min(64, self._cache[1].shape[2]))
        twice = torch.zeros(2, dtype=torch.long)
        return torch.zeros(2, 3, dtype=torch.long), twice + 1, twice, columns, *self._cache

    def check(self, form: _Form) -> None:
        """Raise ValueError unless the form gives the model's own log-probabilities, with the
        context computed in one part and in two."""
        last = self._ids.shape[1] - 1
        for first in (last, min(3, last)):
            self._check(form, first)

    def _check(self, form: _Form, first: int) -> None:
        ids, rows = self._ids, torch.arange(self.rows)
        last = ids.shape[1] - 1
        temperature, uniforms = (
            torch.ones(self.rows),
            torch.full((self.rows,), 0.5, dtype=torch.float64),
        )
        with computing():
            if first:
                form.prefill(ids[:, :first], rows, rows, *self._cache)
            if first < last:
                starts, columns = torch.full((self.rows,), first), torch.arange(last)
                form.onward(ids[:, first:-1], starts, rows, columns, *self._cache)
            arguments = (
                ids[:, -1],
                torch.full((self.rows,), last),
                torch.zeros(self.rows, dtype=torch.long),
                torch.arange(last + 1),
                temperature,
                uniforms,
            )
            tokens, behaviour, *_ = form.decode(*arguments, *self._cache)
            error = float(
                (self._log_probabilities.gather(1, tokens[:, None])[:, 0] - behaviour).abs().max()
            )
        if not error <= self._tolerance:
            raise ValueError(
                f"the embedded engine's log-probabilities differ by {error:.2g} from the model's "
                "own; it decodes models with plain causal"
                " attention only"
            )


def _traced(steps: nn.Module, arguments: dict[str, tuple[Tensor, ...]]) -> nn.Module:
    """The module with traces of the methods that `arguments` name, each made with these."""
    with torch.no_grad(), warnings.catch_warnings():
        # of choices taken while tracing, which `check` verifies, and of torch.jit's age
        warnings.simplefilter("ignore")
        trace = torch.jit.trace_module
        traced: nn.Module = trace(steps, arguments, check_trace=False)  # type: ignore[no-untyped-call]
        return traced


def _crossing(plain: _Form, fast: _Form, trial: _Trial, slots: int) -> int:
    """The smallest number of rows for which `fast` is faster, measured at 1, 4, 16, … and `slots`
    rows; `slots + 1` where it never is."""
    crossing = slots + 1
    for rows in sorted(
        {slots, *(4**k for k in range(slots.bit_length()) if 4**k < slots)}, reverse=True
    ):
        arguments = trial.decode_arguments(rows)
        if not _is_faster(fast.decode, plain.decode, arguments):
            break
        crossing = rows
    return crossing


def _is_faster(program: Program, other: Program, arguments: tuple[Tensor, ...]) -> bool:
    """True if `program` takes less than `other` at its best of a few runs. Runs alternate, so that
    load on the machine affects both."""
    best = [math.inf, math.inf]
    with computing():
        for _ in range(8):
            for i, candidate in enumerate((program, other)):
                begun = time.perf_counter()
                candidate(*arguments)
                best[i] = min(best[i], time.perf_counter() - begun)
    return best[0] < best[1]
