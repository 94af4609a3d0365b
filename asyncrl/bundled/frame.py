"""The frame of the bundled model: the pieces that the prompts of its task have in common."""

from __future__ import annotations

from asyncrl.bundled.bundled_model import task_frame
from asyncrl.config.schema import Config
from asyncrl.tasks import open_task


def frame_of(config: Config) -> tuple[str, ...]:
    """The pieces of a run's task; none where a supervised run learns a file, which may be no task.
    Raises TaskError."""
    if config.sft.run and config.task.reads_data:
        return ()
    return tuple(task_frame(open_task(config.task, config.run.seed)))
