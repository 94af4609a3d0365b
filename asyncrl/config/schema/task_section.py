"""Settings of the task."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from asyncrl.config.plugins import Named, file_names
from asyncrl.config.schema.section import BASIC, CODE, PATH, Count, Section
from asyncrl.config.selection_names import CURRICULA


class TaskConfig(Section, frozen=True):
    """The task: prompts, and the verifier of answers."""

    resumable = ("sandbox", "verdict_s")

    name: Annotated[
        str,
        CODE,
        BASIC,
        Meta(
            description=(
                "`data`, `seeds`, a reasoning-gym data set, or the module:name or ./file.py:name "
                "of a class derived from asyncrl.Task"
            )
        ),
    ] = "spell_backward"
    params: Annotated[
        dict[str, Any],
        Meta(description="the data set's own parameters, or the arguments of your class"),
    ] = {}
    path: Annotated[
        str,
        BASIC,
        PATH,
        Meta(
            description=(
                "`data`: a file of prompts, a folder or a pattern of them, or hub:ORG/NAME "
                "(docs/data.md)"
            )
        ),
    ] = ""
    prompt_key: Annotated[
        str,
        Meta(description="`data`: key of a row's prompt, as `a.b`; empty: by the form of the rows"),
    ] = ""
    answer_key: Annotated[
        str,
        Meta(description="`data`: key of a row's answer, as `a.b`; empty: by the form of the rows"),
    ] = ""
    eval_path: Annotated[
        str,
        PATH,
        Meta(
            description=(
                "`data`: held-out prompts, as path; empty: the last eval_size rows of path"
            )
        ),
    ] = ""
    verifier: Annotated[
        str,
        Named("verifier", file_names("tasks/verifiers")),
        BASIC,
        Meta(description="`data`: verifier of rows that name none"),
    ] = "exact"
    reward: Annotated[
        Literal["auto", "exact", "score"],
        Meta(
            description=(
                "reward for training: exact, 1 for a right answer and 0 for any other; score, the "
                "verifier's; auto, exact where the data set gives partial credit for junk"
            )
        ),
    ] = "auto"
    sandbox: Annotated[
        Literal["auto", "strict", "process"],
        Meta(
            description=(
                "for verifiers: strict, they reach nothing but the answer; process, they can be "
                "killed; auto, strict where this machine supports it"
            )
        ),
    ] = "auto"
    template: Annotated[str, Meta(description="the prompt's text around {question}")] = (
        "{question}\n"
    )
    chat: Annotated[
        bool, Meta(description="render prompts with the model's chat template instead")
    ] = False
    train_size: Annotated[
        int, Meta(ge=1, description="number of different training prompts; `data`: counted")
    ] = 20_000
    eval_size: Annotated[
        int, BASIC, Meta(ge=0, description="held-out prompts; 0: no evaluation")
    ] = 128
    curriculum: Annotated[
        str,
        CURRICULA.named,
        Meta(
            description=(
                "choice of the next prompt: each in turn, without those that all rollouts solved "
                "lately, or half-solved ones first"
            )
        ),
    ] = "in_order"
    epochs: Annotated[
        int,
        Meta(ge=0, description="passes over the training prompts; 0: as many as the steps need"),
    ] = 0
    verdict_s: Annotated[
        float, Meta(gt=0, description="seconds a verifier may take for one answer")
    ] = 10.0
    stages: Annotated[
        tuple[Count, ...],
        Meta(description="several tasks: training prompts at which the next weights begin"),
    ] = ()
    mix: Annotated[
        dict[str, Any],
        CODE,
        Meta(
            description=(
                "several tasks: for each label a table of settings that override [task]'s "
                "(docs/evaluation.md)"
            )
        ),
    ] = {}
    weights: Annotated[
        dict[str, Any],
        Meta(
            description=(
                "several tasks: by label the share of the prompts, or a list with one for each "
                "stage; a task without a weight is only evaluated"
            )
        ),
    ] = {}

    @property
    def reads_data(self) -> bool:
        """True for a data set of the user's own; `jsonl` is the earlier name of it."""
        return self.name in ("data", "jsonl")
