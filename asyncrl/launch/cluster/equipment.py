"""The equipment that actors of its role need of a machine that joins, and its places for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asyncrl.config import Config
from asyncrl.config.errors import ConfigError
from asyncrl.config.gpus import gpus_each
from asyncrl.engines.spec import engine_kind
from asyncrl.judges.api_key import check_judge
from asyncrl.launch.cluster.places import Places
from asyncrl.messages import JoinedRole
from asyncrl.runtime.processes.machine import gpus_here
from asyncrl.tasks.judge_checks import check_judging, differing_origin, opened, origins


def places_for(
    role: JoinedRole,
    config: Config,
    cores: Sequence[int],
    room: int,
    launchers: Mapping[str, str],
) -> Places:
    """Places on this machine's `cores` for the `room` expected actors of a role; `launchers` are
    the origins of the task on the launcher's machine. Raises ConfigError if this machine lacks what
    they need."""
    match role:
        case "rollout":
            each = gpus_each(config)
            places = Places(cores, room, gpus_here() if each else 0, each)
            engine_kind(config.engine.kind).check(config)
            return places
        case "reward":
            if differs := differing_origin(launchers, origins(config.task)):
                raise ConfigError(f"{differs}; install the same there")
            check_judging(config.task, opened(config.task, config.run.seed))
            check_judge(config)
            return Places(cores, room, 0, 0)
        case "trainer" if config.train.device == "cuda":
            return Places(cores, room, gpus_here(), 1, least=room, who="a machine of the trainer")
        case "trainer":
            if room > len(cores):
                raise ConfigError(
                    f"it offers {len(cores)} cores, and {room} of the trainer's ranks need one each"
                )
            return Places(cores, room, 0, 0)
