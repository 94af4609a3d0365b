"""Checks of a supervised run before anything starts: of the machine, the model, and every row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from asyncrl.bundled import bundled_model
from asyncrl.bundled.frame import frame_of
from asyncrl.config import Config, ConfigError
from asyncrl.config.derived import Row
from asyncrl.config.gpus import gpus_of
from asyncrl.explain.sinks.sink import refuse_unfit_sinks
from asyncrl.launch.checkpoint_room import room_rows
from asyncrl.launch.data_origins import check_origins
from asyncrl.launch.machine_checks import check_cores, check_gpus
from asyncrl.launch.model_directories import check_adapters, check_directory
from asyncrl.launch.preflight import Checked, check_curve, check_paths, check_run_directory
from asyncrl.launch.run_copy import refuse_unfit
from asyncrl.launch.weight_numbers import check_numbers
from asyncrl.own_folder import own_folder
from asyncrl.runtime.waiting import Doing
from asyncrl.tasks import TaskError
from asyncrl.tasks.sft_data import SftData, SftSplit, open_sft_data
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.checkpoint_index import complete
from asyncrl.words import count, sentence


def check_sft(
    config: Config, resume: Path | None, available: int, doing: Doing = lambda what: None
) -> Checked:
    """Check all that can be checked of a supervised run without starting or writing anything.
    `available` is the number of cores; `doing` is called with each work that may take long. The
    configuration that is returned has the steps that the data gives. Raises ConfigError."""
    doing("checking this machine and the model")
    check_cores(config, available)
    check_paths(config)
    refuse_unfit(config, resume)
    if resume:
        refuse_uncertain(Path(config.run.dir))
    refuse_unfit_sinks(config.run.sinks)
    if (gpus := gpus_of(config)).needed:
        check_gpus(gpus, torch_computes=bool(gpus.trainer))
    notes = list[Row]()
    if config.model.path:
        check_directory("model.path", Path(config.model.path))
        notes += check_numbers("model.path", Path(config.model.path))
    if config.model.lora.rank:
        check_adapters(config)
    doing("reading the data")
    try:
        with _model_directory(config) as directory:
            tokenizer = Tokenizer(directory, chat=config.task.chat)
            data = open_sft_data(config, tokenizer, partial(_say, doing))
    except TaskError as error:
        raise ConfigError(sentence(error)) from None
    config = replace(config, train=replace(config.train, steps=data.steps))
    check_run_directory(config, resume)
    if resume:
        notes += check_origins(config, Path(config.run.dir))
    return Checked(config, [*_rows(data, config), *room_rows(config), *notes])


def _say(doing: Doing, done: int, of: int) -> None:
    if not done % 1000:
        doing(f"reading the data: {count(done)} of {count(of)} rows")


def refuse_uncertain(run: Path) -> None:
    """Check that a resumed run has the curve of the steps that its checkpoints have taken. Raises
    ConfigError."""
    steps, checkpoints = check_curve(run), complete(run)
    if checkpoints and not steps and checkpoints[-1].version:
        raise ConfigError(
            f"{run}: there are checkpoints in it, but no curve, as in an incomplete copy; put "
            "it back, or choose another run.dir."
        )


@contextmanager
def _model_directory(config: Config) -> Iterator[Path]:
    """A directory with the tokenizer of the model that learns. Raises TaskError."""
    if config.model.path:
        yield Path(config.model.path)
        return
    with own_folder("check") as folder:
        bundled_model.write_tokenizer(folder, frame_of(config))
        yield folder


def _rows(data: SftData, config: Config) -> list[Row]:
    """Rows of the table that is printed first, about the data."""
    trained, held, steps = data.train, data.held_out, config.train.steps
    rows = len(trained.rows)
    per_step = (
        f"{count(config.train.step_tokens)} learned tokens"
        if config.train.step_tokens
        else f"{count(config.train.batch_groups)} rows"
    )
    if config.train.step_tokens:
        epochs = steps * config.train.step_tokens / max(1, trained.learned)
    else:
        epochs = steps * config.train.batch_groups / rows
    epochs = min(epochs, config.task.epochs) if config.task.epochs else epochs
    return [
        Row("rows", count(rows), f"{count(len(held.rows))} more are held out (task.eval_size)"),
        Row(
            "tokens",
            count(trained.tokens),
            f"of which {count(trained.learned)} are learned (sft.loss_on = {config.sft.loss_on}); "
            f"the longest sequence has {count(trained.longest)} of engine.context_tokens = "
            f"{config.engine.context_tokens}",
        ),
        Row("steps", count(steps), f"of {per_step}: {epochs:.3g} epochs"),
        *([Row("note", "task.path", data.said)] if data.said else []),
        Row("weights", config.model.dtype, "type in which the model learns"),
        *_left_out("training", trained, config),
        *_left_out("held-out", held, config),
    ]


def _left_out(name: str, split: SftSplit, config: Config) -> Iterator[Row]:
    if split.too_long:
        dropped = config.sft.too_long == "drop"
        yield Row(
            "note",
            "sft.too_long",
            f"{count(split.too_long)} {name} rows have more than engine.context_tokens = "
            f"{config.engine.context_tokens} tokens and are {'left out' if dropped else 'cut'}",
        )
    if split.held_out:
        text = f"{count(split.held_out)} rows have the prompt of a held-out one and do not train"
        yield Row("note", "task.eval_size", text)
