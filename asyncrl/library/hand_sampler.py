"""The engine of a loop written by hand: the embedded one, without the actors around it."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from operator import index
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from asyncrl.config import Config, ConfigError
from asyncrl.config.chunk_tokens import chunk_tokens
from asyncrl.engines.embedded.batcher import Batcher
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions, embedded_options
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.engines.request_checks import refuse_misfit
from asyncrl.launch.hub.hub_models import model_directory
from asyncrl.library.arrays import Sequence as PublicSequence
from asyncrl.library.arrays import token_ids
from asyncrl.library.given_config import as_config
from asyncrl.library.hand_learner import Learner
from asyncrl.library.starting_model import as_model, opened
from asyncrl.tasks import TaskError
from asyncrl.tasks.prompt import ChatPrompt, Prompt
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.models import ModelError, parameters_for_publication
from asyncrl.training.rounding import round_for_good
from asyncrl.words import sentence

FIRST = 1 << 20
"""Each sampler numbers its groups from another multiple of this, so that those of two differ."""
_SAMPLERS = count()


class Sampler:
    """Samples responses, with the log-probability of each token as it was drawn.

    It has weights of its own, which `load` replaces by a learner's. Settings are those of a run:
    `[engine]`, `rollout.temperature`, `rollout.max_new_tokens`, `task.chat`, `run.seed`.

    >>> import asyncrl as rl
    >>> config = rl.Config(model={"warmup_steps": 0})
    >>> sampler = rl.Sampler(rl.starting_model(config), config)
    >>> two = sampler.generate(["1 + 1 ="], 2, max_new_tokens=4)
    >>> [one.group == two[0].group for one in two], int(two[0].versions[0])
    ([True, True], 0)
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        config: Config | None = None,
        *,
        tokenizer: str | Path | None = None,
    ) -> None:
        """Sample from a model directory or a name on a hub, or from a copy of a model; then
        `tokenizer` is such a directory with its tokenizer, without which prompts are ids. Raises
        ConfigError for a model that cannot be decoded."""
        self.config = config = Config() if config is None else as_config("Sampler", config)
        directory = tokenizer and model_directory(tokenizer)
        if isinstance(model, str | Path):
            model = model_directory(model)
            own, directory = opened(model, config), directory or model
        else:
            own = copy.deepcopy(as_model(model))
        try:
            if config.model.rounding == "fp8":
                round_for_good(own)
            self.tokenizer = directory and Tokenizer(directory, chat=config.task.chat)
            self._batcher = Batcher(own, _options(config, own, self.tokenizer or None))
        except (ModelError, TaskError, ValueError) as error:
            raise ConfigError(sentence(error)) from None
        self._groups = count(FIRST * next(_SAMPLERS))
        self._rollouts = count()
        self._batcher.load(0, self._batcher.weights, pin=False)

    @property
    def version(self) -> int:
        """The version that samples from now on."""
        assert self._batcher.version is not None, "it has loaded its first weights"
        return self._batcher.version

    def load(self, learner: Learner) -> None:
        """Sample from the learner's weights from now on. Raises ValueError for those of another
        model."""
        weights = dict(parameters_for_publication(learner.model))
        self._batcher.refuse_weights(weights)
        self._batcher.load(learner.version, weights, pin=False)

    def generate(
        self,
        prompts: Sequence[Prompt | Sequence[int]],
        n: int = 1,
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
    ) -> list[PublicSequence]:
        """Sample `n` responses to each prompt, those of one prompt after each other, as a group.
        Prompts are texts, conversations or ids. At temperature 0 it is greedy, and the sequences
        are for evaluation: a learner expects `rollout.temperature`. Raises ValueError for a prompt
        that does not fit."""
        if isinstance(prompts, str | ChatPrompt):
            raise ValueError("prompts is one prompt: give a list of them")
        if max_new_tokens is not None:
            max_new_tokens = index(max_new_tokens)
        rollout, asked = self.config.rollout, list[tuple[int, Request]]()
        for prompt in prompts:
            ids, group = self._ids(prompt), next(self._groups)
            for _ in range(n):
                number = next(self._rollouts)
                request = Request(
                    rollout=number,
                    attempt=1,
                    key=number,
                    ids=ids,
                    prefix_tokens=0,
                    max_new_tokens=rollout.max_new_tokens
                    if max_new_tokens is None
                    else max_new_tokens,
                    temperature=rollout.temperature if temperature is None else temperature,
                )
                refuse_misfit(
                    request,
                    vocab_size=self._batcher.vocab_size,
                    context_tokens=self.config.engine.context_tokens,
                )
                asked.append((group, request))
        self._batcher.submit([request for _, request in asked])
        chunks = defaultdict[int, list[Chunk]](list)
        while self._batcher.has_work:
            for chunk in self._batcher.advance(chunk_tokens(self.config)):
                chunks[chunk.rollout].append(chunk)
        return [self._sequence(group, request, chunks[request.rollout]) for group, request in asked]

    def _ids(self, prompt: Prompt | Sequence[int]) -> NDArray[np.int32]:
        if not isinstance(prompt, str | ChatPrompt):
            return token_ids("a prompt that is no text", prompt)
        if not self.tokenizer:
            raise ValueError("a prompt is text, and there is no tokenizer: give one, or ids")
        try:
            return np.array(self.tokenizer.encode(prompt), np.int32)
        except TaskError as error:
            raise ValueError(str(error)) from None

    def _sequence(self, group: int, request: Request, chunks: Sequence[Chunk]) -> PublicSequence:
        response = np.concatenate([chunk.ids for chunk in chunks])
        tokenizer = self.tokenizer
        versions = np.repeat([c.version for c in chunks], [len(c.ids) for c in chunks])
        return PublicSequence(
            np.concatenate([request.ids, response]),
            np.minimum(np.concatenate([chunk.behaviour for chunk in chunks]), 0.0),
            prompt_tokens=len(request.ids),
            versions=versions,
            group=group,
            finish=chunks[-1].finish,
            text=tokenizer.decode(response.tolist()) if tokenizer else "",
            text_special=tokenizer.decode_response(response.tolist()) if tokenizer else "",
            prompt=tokenizer.decode(request.ids.tolist(), special=True) if tokenizer else "",
        )


def _options(
    config: Config, model: PreTrainedModel, tokenizer: Tokenizer | None
) -> EmbeddedOptions:
    stops = model.config.eos_token_id
    of_model = [] if stops is None else [stops] if isinstance(stops, int) else stops
    return embedded_options(config, tokenizer.stop_ids if tokenizer else of_model)
