"""`python -m asyncrl.actors.preloaded FD MODULE RUN`: the fork server of a run, which has imported
what actors need. Started by the launcher, and never by hand.

Invariant: it computes nothing, starts no thread and opens no device, so that its forks are clean.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path

from asyncrl import config
from asyncrl.config import Config
from asyncrl.config.judging import asks
from asyncrl.engines.spec import engine_kind
from asyncrl.runtime.processes import forkserver

MODULES = (
    "asyncrl.actors.coordinator.coordinator",
    "asyncrl.actors.coordinator.resume",
    "asyncrl.actors.engines.embedded",
    "asyncrl.actors.engines.scripted",
    "asyncrl.actors.reward_actor",
    "asyncrl.actors.roles",
    "asyncrl.actors.rollout_actor",
    "asyncrl.actors.scoring_servers",
    "asyncrl.actors.sft_coordinator",
    "asyncrl.actors.trainer_process",
    "asyncrl.engines.embedded.engine",
    "asyncrl.engines.scripted",
    "asyncrl.journal",
    "asyncrl.explain.metrics",
    "asyncrl.explain.curve_file",
    "asyncrl.tasks.file_answers",
    "asyncrl.tasks.text",
    "asyncrl.training.checkpoint_io",
    "asyncrl.training.learner",
    "asyncrl.training.models",
    "asyncrl.training.trial",
    "asyncrl.weightsync.adapted_base",
    "asyncrl.weightsync.direct",
    "asyncrl.weightsync.staged",
)
"""Modules that the roles import when they start."""
OF_AGENTS = (
    "asyncrl.actors.agents_actor",
    "asyncrl.actors.agents_gateway",
    "asyncrl.agents.printed",
)
"""Modules that the role `agents` imports as well; a run without agents does not."""
OF_JUDGES = ("asyncrl.judges.judge_client",)
"""Likewise those of a run with a judge."""
MAINS = {
    "asyncrl.actors": "asyncrl.actors.__main__",
    "asyncrl.bundled.prepare": "asyncrl.bundled.prepare",
}
"""The module with the `main` of each `python -m`."""


def main() -> None:
    control = forkserver.begin(sys.argv[1:])
    settings = config.read(Path(sys.argv[3]) / "run.toml")
    preload(settings)
    request = forkserver.serve(control)
    if request is not None:
        importlib.import_module(MAINS[request.module]).main()


def preload(settings: Config) -> None:
    """Import the modules of the actors of a run with these settings, and reseed random generators
    in each fork, as Python's own generator does."""
    import numpy as np
    import torch

    needed = MODULES + (OF_AGENTS if settings.agent.run else ())
    for module in needed + (OF_JUDGES if asks(settings) else ()):
        importlib.import_module(module)
    engine_kind(settings.engine.kind)  # which may be a user's own
    model_class(settings.model.path)
    for seed in (np.random.seed, torch.default_generator.seed):
        os.register_at_fork(after_in_child=seed)
    if cuda_is_touched():
        raise RuntimeError(
            "a module of the actors queries CUDA devices at import, which breaks forks"
        )


def cuda_is_touched() -> bool:
    """True if a fork of this process could not use CUDA: it is initialised, or was asked for its
    devices. torch reports that only in a fork, so this makes one."""
    import torch

    probe = os.fork()
    if not probe:
        os._exit(torch.cuda._is_in_bad_fork())
    return os.waitpid(probe, 0)[1] != 0


def model_class(path: str) -> object:
    """The class of the model at `path`, "" for the bundled one; None where its configuration, the
    only file read, cannot be read: the actors report errors."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    from asyncrl.bundled import bundled_model

    if not path:
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(bundled_model.model_config())]
    with contextlib.suppress(Exception):  # transformers raises any exception
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return None


if __name__ == "__main__":
    main()
