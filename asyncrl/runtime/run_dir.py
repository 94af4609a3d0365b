"""The names of the files in a run's directory. Each name is written once, here."""

from __future__ import annotations

import fcntl
from pathlib import Path

from asyncrl.config.errors import ConfigError

RUN_TOML = "run.toml"
"""The resolved settings of the run."""
ORIGINS = "origins.json"
"""Digests of the task's files, verifier and package, as the run began with them."""
LOCK = "lock"
"""The file that the launcher locks as long as it lives."""

KEY = "key"
"""The run's key, readable by its user alone."""
LAUNCHER = "launcher.sock"
COORDINATOR = "coordinator.sock"
COORDINATOR_ADDRESS = "coordinator.address"
"""The port at which actors on other machines find the coordinator (`cluster`)."""
TLS = "tls"
"""The folder of the files for TLS between the machines of a run."""
JOIN_TOKEN = "join.token"
"""The file that another machine needs in order to take part, readable by the run's user alone."""
COPY_ID = "copy.id"
"""A number that identifies the run's copy in an object store (`run.copy`)."""
INITIAL = "initial"
"""The model the run started from: a link to its directory."""
JOURNAL = "journal.sqlite"
SUMMARY = "summary.json"
METRICS = "metrics.jsonl"
"""The curve of the run: a line for each step and each evaluation."""
GATEWAY_KEY = "gateway.key"
"""The key of the agents' gateway, readable by the run's user alone."""
PAGE_KEY = "page.key"
"""The key of the run's page if it is not on loopback, readable by the run's user alone."""
SINKS = "sinks"
"""The folder of the progress notes of each of `run.sinks`."""
TENSORBOARD = "tensorboard"
"""The folder of TensorBoard's event files (`run.sinks`)."""
CLUSTER_MODELS = "models.toml"
"""Models of a cluster's parts, which `asyncrl calibrate` fitted from the run."""
MODEL = "model"
"""The model after the last step, as a Hugging Face directory."""
ADAPTER = "adapter"
"""The adapters after the last step (`model.lora`), in peft's format; MODEL has them in its
weights."""
MODEL_EMA = "model-ema"
"""The average of the weights after the last step (`train.ema`), as MODEL is."""
WEIGHT_STORE = "weights.store"
"""The file in which trainer and engines of one machine meet to pass on weights."""
RANKS = "ranks.sock"
"""The socket of the trainer's rank 0, for the others."""
RANK_STORE = "ranks.store"
"""The file in which the ranks of a trainer meet."""
SERVERS = "servers"
"""The folder of links to the engines' servers that outlive their actor, each to its own folder."""
PACKED = "packed_from"
"""The number of rows from which on the run's engines multiply with packed weights. It is measured
once, so that a resumed run rounds as before."""
PROGRESS = "progress.pipe"
"""A pipe to the launcher from the process that prepares the model."""
STATUS = "status.json"
"""The run status, written about once a second."""
STALL = "stall.json"
"""The run status at the moment when the watchdog ended the run."""


def refuse_no_run(run: Path) -> None:
    """Raise ConfigError if `run` is not the directory of a run."""
    if not run.is_dir():
        raise ConfigError(f"{run}: there is no such directory; give the directory of a run.")
    if not (run / RUN_TOML).is_file():
        raise ConfigError(
            f"{run}: there is no {RUN_TOML} in it, so it is not the directory of a run."
        )


def lives(run: Path) -> bool:
    """True if a process has claimed this run directory, and has not ended."""
    try:
        with (run / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock file
        return False
    return False
