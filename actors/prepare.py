"""`python -m actors.prepare RUN THREADS`: the bundled model, warmed up. Invariant: `RUN/initial` is a whole model, or not there.

In a process of its own, because the warm-up computes with torch on every core, and the launcher never imports it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from asyncrl import config, logs
from asyncrl.places import INITIAL
from asyncrl.process import become_child


def main() -> None:
    become_child()
    run, threads = Path(sys.argv[1]), int(sys.argv[2])
    settings = config.read(run / "run.toml")
    logs.start(run, "launcher", 0, settings.run.log)
    import torch
    from asyncrl.training.warmup import prepare_model

    torch.set_num_threads(threads)
    (run / INITIAL).symlink_to(prepare_model(settings).absolute(), target_is_directory=True)


if __name__ == "__main__":
    main()
