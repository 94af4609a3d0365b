"""Settings of the task."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from asyncrl.config.plugins import Named, file_names
from asyncrl.config.schema.section import BASIC, CODE, PATH, Count, Section, Tag
from asyncrl.config.selection_names import CURRICULA

ORIGIN = r"^([Hh][Tt][Tt][Pp][Ss]?://)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$"
"""A host, with a scheme and a port or without."""


class TaskConfig(Section, frozen=True):
    """The task: prompts, and the verifier of answers."""

    resumable = ("sandbox", "verdict_s", "prefers")

    name: Annotated[
        str,
        CODE,
        BASIC,
        Meta(
            description=(
                "`data`, `seeds`, a reasoning-gym data set, or your own class derived from "
                "asyncrl.Task, as module:name or ./file.py:name"
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
        Meta(
            description=(
                "`data`: key of a row's prompt, such as `a.b`; empty: found by the row's form"
            )
        ),
    ] = ""
    answer_key: Annotated[
        str,
        Meta(
            description=(
                "`data`: key of a row's answer, such as `a.b`; empty: found by the row's form"
            )
        ),
    ] = ""
    eval_path: Annotated[
        str,
        PATH,
        Meta(
            description=(
                "`data`: held-out prompts, in any form that path takes; empty: the last "
                "eval_size rows of path"
            )
        ),
    ] = ""
    verifier: Annotated[
        str,
        Named("verifier", file_names("tasks/verifiers")),
        BASIC,
        Meta(description="`data`: verifier for rows that do not name one"),
    ] = "exact"
    reward: Annotated[
        Literal["auto", "exact", "score"],
        Meta(
            description=(
                "training reward: exact, 1 for a right answer and 0 for any other; score, the "
                "verifier's score; auto, exact if the data set gives partial credit for junk, "
                "else score"
            )
        ),
    ] = "auto"
    sandbox: Annotated[
        Literal["auto", "strict", "process"],
        Meta(
            description=(
                "confinement of verifiers: strict, they can reach nothing but the answer; "
                "process, they can only be killed; auto, strict if this machine supports it"
            )
        ),
    ] = "auto"
    template: Annotated[str, Meta(description="text of the prompt, with {question} filled in")] = (
        "{question}\n"
    )
    chat: Annotated[
        bool,
        Meta(description=("render prompts with the model's chat template, instead of template")),
    ] = False
    image_hosts: Annotated[
        tuple[Annotated[str, Meta(pattern=ORIGIN)], ...],
        Meta(
            description=(
                "hosts from which images are fetched that prompts and agents' calls name by a URL, "
                "as `example.org` or `http://10.0.0.5:8000`; others are refused"
            )
        ),
    ] = ()
    train_size: Annotated[
        int,
        Meta(
            ge=1, description=("number of different training prompts; `data`: the number of rows")
        ),
    ] = 20_000
    eval_size: Annotated[
        int, BASIC, Meta(ge=0, description="number of held-out prompts; 0: no evaluation")
    ] = 128
    curriculum: Annotated[
        str,
        CURRICULA.named,
        Meta(
            description=(
                "choice of the next prompt: in turn, in turn but without those that all "
                "rollouts solved recently, or half-solved ones first"
            )
        ),
    ] = "in_order"
    prefers: Annotated[
        Tag,
        Meta(
            description=(
                "the tag of the rollout actors (rollout.needs) that its prompts go to first; "
                "empty: any"
            )
        ),
    ] = ""
    epochs: Annotated[
        int,
        Meta(ge=0, description="passes over the training prompts; 0: as many as the steps need"),
    ] = 0
    verdict_s: Annotated[
        float, Meta(gt=0, description="most seconds that a verifier may take for one answer")
    ] = 10.0
    stages: Annotated[
        tuple[Count, ...],
        Meta(
            description=(
                "several tasks: numbers of training prompts after which the next "
                "stage's weights apply"
            )
        ),
    ] = ()
    mix: Annotated[
        dict[str, Any],
        CODE,
        Meta(
            description=(
                "several tasks: for each label a table of settings that override those in "
                "[task] (docs/evaluation.md)"
            )
        ),
    ] = {}
    weights: Annotated[
        dict[str, Any],
        Meta(
            description=(
                "several tasks: for each label its share of the prompts, or a list with one "
                "share per stage; a task without a weight is only evaluated"
            )
        ),
    ] = {}

    @property
    def reads_data(self) -> bool:
        """True for the user's own data set; `jsonl` is its earlier name."""
        return self.name in ("data", "jsonl")
