"""The images of a run's prompts that are fetched before anything starts (`task.image_hosts`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from asyncrl.config import Config
from asyncrl.escape import escaped
from asyncrl.messages import Split
from asyncrl.runtime.run_dir import FETCHED, IMAGES
from asyncrl.tasks import Task, TaskError, open_task
from asyncrl.tasks.images.fetched_images import FetchedImages, fetch_images
from asyncrl.tasks.images.image_source import ImageSource
from asyncrl.tasks.images.kept_images import KeptImages
from asyncrl.tasks.prompt import ChatPrompt


def fetch_run_images(config: Config, run: Path) -> str:
    """Fetch what is not there yet. Returns a note about what is missing; empty if nothing is."""
    store = KeptImages(run / IMAGES, int(config.run.images_gb * 1e9))
    try:
        task, images = open_task(config.task, config.run.seed), FetchedImages(run / FETCHED, store)
        asked, wrong = fetch_images(_images_of(task), images)
    except (OSError, TaskError) as error:
        return f"Not all images were fetched: {escaped(str(error), 300)}."
    if not wrong:
        return ""
    return (
        f"{len(wrong):,} of {asked:,} images were not fetched, and their prompts are dropped; the "
        f"first: {wrong[0]}."
    )


def _images_of(task: Task) -> Iterator[ImageSource]:
    """The images of all prompts, but of those that cannot be read: the run drops them."""
    splits: tuple[Split, ...] = ("train", "evaluation")
    for split in splits:
        for index in range(task.size(split)):
            try:
                prompt = task.prompt(split, index)
            except TaskError:
                continue
            if isinstance(prompt, ChatPrompt):
                yield from prompt.images
