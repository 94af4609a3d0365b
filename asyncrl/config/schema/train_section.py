"""Settings of training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from asyncrl.config.engines import capabilities
from asyncrl.config.loss_names import (
    ADVANTAGES,
    CREDITS,
    GROUP_WEIGHTS,
    MINIBATCH_RULES,
    OBJECTIVES,
)
from asyncrl.config.schema.section import BASIC, Contradictions, Section
from asyncrl.config.selection_names import KEEPS, REPLAYS

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config

Branches = Literal["token", "branch"]
"""Values of `train.branches`."""


class TrainConfig(Section, frozen=True):
    """Optimizer steps."""

    resumable = (
        "steps",
        "eval_every",
        "checkpoint_every",
        "recompute_activations",
        "ranks",
        "replicas",
        "min_ranks",
        "attention",
    )

    steps: Annotated[int, BASIC, Meta(ge=1, description="optimizer steps")] = 200
    device: Annotated[
        Literal["cpu", "cuda"],
        BASIC,
        Meta(description="device of the trainer; cuda: the first GPU that it may use"),
    ] = "cpu"
    ranks: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "processes that train the model together, each with a shard of it; 0: one, or on "
                "cuda as many as there are GPUs left"
            ),
        ),
    ] = 0
    replicas: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "copies of the model; each is divided among ranks / replicas ranks, which "
                "communicate less and hold more"
            ),
        ),
    ] = 1
    min_ranks: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "fewest ranks with which a run continues by itself, without a rank that fails "
                "repeatedly; 0: no rank is left out, and the run continues with any number if "
                "machines, GPUs or cores are lost"
            ),
        ),
    ] = 0
    batch_groups: Annotated[int, BASIC, Meta(ge=1, description="groups in a step")] = 16
    step_tokens: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "response tokens that close a step, instead of batch_groups; 0: batch_groups do"
            ),
        ),
    ] = 0
    unit: Annotated[
        Literal["group", "rollout"],
        Meta(
            description=(
                "unit of training: a group, or a rollout once k_min of the others are judged"
            )
        ),
    ] = "group"
    advantage: Annotated[
        str,
        ADVANTAGES.named,
        BASIC,
        Meta(description="how much better a rollout did than expected of its prompt"),
    ] = "grpo"
    credit: Annotated[
        str,
        CREDITS.named,
        Meta(
            description=(
                "reward of a turn of an agent's episode: the episode's whole reward, or the part "
                "still to come at that turn, or what calls at and below it earn in a tree of calls "
                "(both with advantage rloo or dr_grpo)"
            )
        ),
    ] = "episode"
    group_weight: Annotated[
        str,
        GROUP_WEIGHTS.named,
        Meta(
            description=(
                "factor of the advantages of a prompt's group: 1, p (1 - p) of the prompt's "
                "solve rate p at earlier visits, or one that makes groups of all sizes count alike"
            )
        ),
    ] = "none"
    keep: Annotated[
        str,
        KEEPS.named,
        Meta(
            description=(
                "members of a finished group that are trained: all, the best or the worst by "
                "reward, both, or right answers with few failed calls and any others (GRPO-RoC)"
            )
        ),
    ] = "all"
    keep_members: Annotated[
        int, Meta(ge=0, description="members of a group that are kept; 0: half of those judged")
    ] = 0
    branches: Annotated[
        Branches,
        Meta(
            description=(
                "unit of equal weight in an agent's episode with branches: each sampled token, "
                "which is unbiased, or each branch as if it were a copy, so that a token that n "
                "branches share counts n times"
            )
        ),
    ] = "token"
    prior_visits: Annotated[
        float,
        Meta(
            ge=0,
            description=(
                "first_k: weight of the prompt's earlier rewards beside k_min others, in "
                "rewards; 0: none"
            ),
        ),
    ] = 4.0
    objective: Annotated[
        str,
        OBJECTIVES.named,
        BASIC,
        Meta(description="loss that is minimized, per token"),
    ] = "clip"
    loss_mean: Annotated[
        Literal["auto", "token", "rollout", "constant"],
        Meta(
            description=(
                "unit of equal weight in a step: each token, or each rollout; constant: tokens, "
                "divided by max_new_tokens and the rollouts; auto: rollout for gspo, else token"
            )
        ),
    ] = "auto"
    loss_divisor: Annotated[
        Literal["kept", "all"],
        Meta(
            description=(
                "tokens in the divisor of the loss: trained ones, or also those that corrections "
                "rejected"
            )
        ),
    ] = "kept"
    kl_tau: Annotated[
        float,
        Meta(
            ge=0,
            description=(
                "weight in the loss of (log r)², r the ratio of current to behaviour policy "
                "(prime-rl); 0: none"
            ),
        ),
    ] = 0.0
    entropy_bonus: Annotated[
        float,
        Meta(ge=0, description="reward in the loss for each nat of a token's entropy; 0: none"),
    ] = 0.0
    router_replay: Annotated[
        bool,
        Meta(
            description=(
                "tokens are trained with the experts that they were sampled with (R3); engines "
                "record them"
            )
        ),
    ] = False
    router_aux: Annotated[
        float,
        Meta(
            ge=0,
            description=(
                "weight in the loss of the auxiliary loss that makes a model use its experts "
                "evenly; 0: none"
            ),
        ),
    ] = 0.0
    router_bias_rate: Annotated[
        float,
        Meta(
            ge=0,
            description=(
                "step by which the bias of an expert moves after an update, down if it had more "
                "tokens than the mean (DeepSeek-V3); 0: none"
            ),
        ),
    ] = 0.0
    dual_clip: Annotated[
        float,
        Meta(
            gt=1, description="dual_clip: largest ratio that counts where the advantage is negative"
        ),
    ] = 3.0
    ess_base: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description=(
                "share of the sample size that is normal; below it the learning rate shrinks "
                "(VCPO); 0: never"
            ),
        ),
    ] = 0.0
    minibatches: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "parts that a step's groups are divided into, with an update of the weights for "
                "each; the version is one"
            ),
        ),
    ] = 1
    minibatch_by: Annotated[
        str,
        MINIBATCH_RULES.named,
        Meta(
            description=(
                "what minibatches divide: the step's groups, or the turns of agents' episodes, "
                "the last ones first (SeeUPO), in one pass"
            )
        ),
    ] = "group"
    passes: Annotated[
        int, Meta(ge=1, description="times that a step trains each of its minibatches")
    ] = 1
    replay_groups: Annotated[
        int,
        Meta(ge=0, description="groups of a step that were trained before, at their true versions"),
    ] = 0
    replay: Annotated[
        str,
        REPLAYS.named,
        Meta(description="which groups those are: the ones whose rewards vary most"),
    ] = "variance"
    micro_tokens: Annotated[
        int, Meta(ge=1, description="tokens of a micro-batch, prompts included")
    ] = 8192
    recompute_activations: Annotated[
        bool,
        Meta(
            description=(
                "layers are recomputed in the backward pass, with the same gradients, instead of "
                "keeping their activations: less memory, more time"
            )
        ),
    ] = False
    attention: Annotated[
        Literal["auto", "blocks"],
        Meta(
            description=(
                "attention on cuda: auto computes it by blocks, or by slower tables if the "
                "kernel of blocks cannot be compiled or differs; blocks refuses tables"
            )
        ),
    ] = "auto"
    optimizer: Annotated[
        Literal["adamw", "adamw_fused", "adamw_bf16", "adamw8bit"],
        Meta(
            description=(
                "AdamW with moments in float32 (8 bytes of a parameter; fused: a step in one pass "
                "over all, on cpu), in bfloat16 (4) or in blocks of 8 bits (2)"
            )
        ),
    ] = "adamw"
    lr: Annotated[float, BASIC, Meta(gt=0, description="AdamW's learning rate after warm-up")] = (
        3e-4
    )
    lr_warmup_steps: Annotated[int, Meta(ge=0, description="steps of linear warm-up")] = 10
    lr_schedule: Annotated[
        Literal["constant", "linear", "cosine"], Meta(description="after warm-up")
    ] = "constant"
    weight_decay: Annotated[float, Meta(ge=0, description="AdamW's, of matrices")] = 0.0
    beta1: Annotated[float, Meta(ge=0, lt=1, description="AdamW's memory of the gradient")] = 0.9
    beta2: Annotated[float, Meta(ge=0, lt=1, description="AdamW's memory of its square")] = 0.99
    grad_clip: Annotated[float, Meta(gt=0, description="largest gradient norm")] = 1.0
    ema: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description=(
                "decay of an average of the weights: the weight of a version relative to the next; "
                "0: no average"
            ),
        ),
    ] = 0.0
    clip_lo: Annotated[
        float, Meta(gt=0, lt=1, description="the ratio is clipped below 1 - clip_lo")
    ] = 0.2
    clip_hi: Annotated[float, Meta(gt=0, description="the ratio is clipped above 1 + clip_hi")] = (
        0.28
    )
    eval_every: Annotated[
        int,
        BASIC,
        Meta(ge=0, description="steps between evaluations; 0: at the start and the end only"),
    ] = 25
    checkpoint_every: Annotated[
        int, Meta(ge=0, description="steps between checkpoints; 0: at the end only")
    ] = 100

    def contradictions(self, whole: Config) -> Contradictions:
        if self.micro_tokens < whole.engine.context_tokens:
            yield (
                ("train.micro_tokens", "engine.context_tokens"),
                "the longest rollout must fit in a micro-batch: micro_tokens must be at least "
                "context_tokens",
            )
        if self.optimizer == "adamw_fused" and self.device != "cpu":
            yield (
                ("train.optimizer", "train.device"),
                "the fused AdamW was tried on processors alone: set optimizer to adamw",
            )
        for name in ("router_replay", "router_aux", "router_bias_rate"):
            if getattr(self, name) and not whole.model.path:
                yield (
                    (f"train.{name}", "model.path"),
                    f"the bundled model has no experts: leave {name} out, or set path to a mixture "
                    "of experts",
                )
        if self.router_replay and not capabilities(whole.engine.kind).records_routing:
            yield (
                ("train.router_replay", "engine.kind"),
                "this engine does not record the experts of tokens: set router_replay to false, or "
                "kind to embedded, sglang or vllm",
            )
        if self.router_replay and whole.staleness.proximal == "boundary":
            yield (
                ("train.router_replay", "staleness.proximal"),
                "boundary scores tokens before their experts are known to the trainer: set "
                "proximal to behaviour, or router_replay to false",
            )
        if self.router_bias_rate and whole.model.lora.rank:
            yield (
                ("train.router_bias_rate", "model.lora.rank"),
                "adapters leave the base as it is, and the biases of experts are in it: set "
                "router_bias_rate to 0",
            )
        if self.unit == "rollout" and whole.staleness.on_stale == "restart":
            yield (
                ("train.unit", "staleness.on_stale"),
                "a prompt cannot restart while rollouts of it are trained: set unit to group, "
                "or on_stale to mask or drop",
            )
