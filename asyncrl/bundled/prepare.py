"""`python -m asyncrl.bundled.prepare RUN` makes and warms up the bundled model.

Invariant: `RUN/initial` is a whole model, or does not exist.

This is a process of its own, because the warm-up needs torch, and the launcher never imports it. It
has one thread: so small a model gains nothing from more, and threads that share a core with another
program are far slower.
"""

from __future__ import annotations

import sys
from pathlib import Path

from asyncrl import config
from asyncrl.runtime import logs
from asyncrl.runtime.processes.process import become_child
from asyncrl.runtime.progress import ProgressPipe
from asyncrl.runtime.run_dir import INITIAL, PROGRESS


def main() -> None:
    become_child()
    run = Path(sys.argv[1])
    settings = config.read(run / "run.toml")
    logs.start(run, "launcher", 0, settings.run.log)
    import torch

    from asyncrl.bundled import outlook
    from asyncrl.bundled.warmup import prepare_model

    torch.set_num_threads(1)
    writer, lessons = ProgressPipe(run / PROGRESS), list[outlook.Lesson]()
    steps, enough = settings.model.warmup_steps, settings.model.warmup_accuracy

    def on_lesson(lesson: outlook.Lesson) -> None:
        lessons.append(lesson)
        if writer.due:
            writer.send(outlook.progress(lessons, steps=steps, enough=enough))

    initial = prepare_model(settings, on_lesson).absolute()
    (run / INITIAL).symlink_to(initial, target_is_directory=True)


if __name__ == "__main__":
    main()
