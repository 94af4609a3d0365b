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
from asyncrl.config.plugins import Named, file_names
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
        "offload_activations",
        "ranks",
        "replicas",
        "context_ranks",
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
                "processes that train the model together, each with a shard of it; 0: one, or "
                "on cuda one per remaining GPU"
            ),
        ),
    ] = 0
    replicas: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "copies of the model among the ranks, each sharded over ranks / replicas of "
                "them; more copies gather over shorter distances and take more memory"
            ),
        ),
    ] = 1
    context_ranks: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "ranks that compute a row of tokens together, each a part of it, for contexts "
                "that are too long for one; they share out the activations of a pass"
            ),
        ),
    ] = 1
    min_ranks: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "fewest ranks with which a run continues by itself; from 1 on, a rank that "
                "keeps failing is left out; 0: no rank is left out, and any number continues "
                "if machines, GPUs or cores are lost"
            ),
        ),
    ] = 0
    batch_groups: Annotated[int, BASIC, Meta(ge=1, description="groups per step")] = 16
    step_tokens: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "close a step at this many response tokens instead of at batch_groups; 0: at "
                "batch_groups"
            ),
        ),
    ] = 0
    unit: Annotated[
        Literal["group", "rollout"],
        Meta(
            description=(
                "unit of training: a whole group, or each rollout once k_min of the others are "
                "judged"
            )
        ),
    ] = "group"
    advantage: Annotated[
        str,
        ADVANTAGES.named,
        BASIC,
        Meta(description="advantage: how much better a rollout is than expected for its prompt"),
    ] = "grpo"
    credit: Annotated[
        str,
        CREDITS.named,
        Meta(
            description=(
                "reward of a turn in an agent's episode: the whole episode's; the part still "
                "to come at that turn; or what the calls at and below it earn in a tree of "
                "calls (the last two with advantage rloo or dr_grpo)"
            )
        ),
    ] = "episode"
    group_weight: Annotated[
        str,
        GROUP_WEIGHTS.named,
        Meta(
            description=(
                "factor of a group's advantages: 1; p (1 - p), with p the prompt's solve rate "
                "at earlier visits; or one by which groups of all sizes count equally"
            )
        ),
    ] = "none"
    keep: Annotated[
        str,
        KEEPS.named,
        Meta(
            description=(
                "members of a finished group to train: all, the best or the worst by reward, "
                "both, or right answers with few failed calls and any others (GRPO-RoC)"
            )
        ),
    ] = "all"
    keep_members: Annotated[
        int, Meta(ge=0, description="members to keep of a group; 0: half of those judged")
    ] = 0
    branches: Annotated[
        Branches,
        Meta(
            description=(
                "what has equal weight in an agent's episode with branches: each sampled "
                "token, which is unbiased, or each branch, so that a token shared by n "
                "branches counts n times"
            )
        ),
    ] = "token"
    prior_visits: Annotated[
        float,
        Meta(
            ge=0,
            description=(
                "first_k: weight of the prompt's earlier rewards, counted in rewards, beside "
                "those of k_min others; 0: none"
            ),
        ),
    ] = 4.0
    objective: Annotated[
        str,
        OBJECTIVES.named,
        BASIC,
        Meta(description="per-token loss to minimize"),
    ] = "clip"
    loss_mean: Annotated[
        Literal["auto", "token", "rollout", "constant"],
        Meta(
            description=(
                "what has equal weight in a step: each token, or each rollout; constant: "
                "tokens, divided by max_new_tokens times the rollouts; auto: rollout for gspo, "
                "else token"
            )
        ),
    ] = "auto"
    loss_divisor: Annotated[
        Literal["kept", "all"],
        Meta(
            description=(
                "tokens counted in the divisor of the loss: those trained (kept), or also "
                "those that corrections rejected (all)"
            )
        ),
    ] = "kept"
    kl_tau: Annotated[
        float,
        Meta(
            ge=0,
            description=(
                "weight of (log r)² in the loss, with r the ratio of current to behaviour "
                "policy (prime-rl); 0: none"
            ),
        ),
    ] = 0.0
    entropy_bonus: Annotated[
        float,
        Meta(ge=0, description="bonus in the loss per nat of a token's entropy; 0: none"),
    ] = 0.0
    router_replay: Annotated[
        bool,
        Meta(
            description=(
                "train tokens with the experts that they were sampled with (R3), which engines "
                "record"
            )
        ),
    ] = False
    router_aux: Annotated[
        float,
        Meta(
            ge=0,
            description=("weight of the auxiliary loss for an even use of experts; 0: none"),
        ),
    ] = 0.0
    router_bias_rate: Annotated[
        float,
        Meta(
            ge=0,
            description=(
                "step by which an expert's bias changes after an update: down if it had more "
                "tokens than the mean, else up (DeepSeek-V3); 0: none"
            ),
        ),
    ] = 0.0
    dual_clip: Annotated[
        float,
        Meta(gt=1, description="dual_clip: bound of the ratio where the advantage is negative"),
    ] = 3.0
    ess_base: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description=(
                "normal effective share of the sample size; below it the learning rate shrinks "
                "(VCPO); 0: never"
            ),
        ),
    ] = 0.0
    minibatches: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "parts into which a step's groups are divided, each with its own update of the "
                "weights; they still make one version"
            ),
        ),
    ] = 1
    minibatch_by: Annotated[
        str,
        MINIBATCH_RULES.named,
        Meta(
            description=(
                "what minibatches divide: the step's groups, or the turns of agents' episodes, "
                "last turns first (SeeUPO), in one pass"
            )
        ),
    ] = "group"
    passes: Annotated[
        int, Meta(ge=1, description="how often a step trains each of its minibatches")
    ] = 1
    replay_groups: Annotated[
        int,
        Meta(ge=0, description="groups per step that were trained before, at their true versions"),
    ] = 0
    replay: Annotated[
        str,
        REPLAYS.named,
        Meta(description="which groups are replayed: those whose rewards vary most"),
    ] = "variance"
    micro_tokens: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "tokens per micro-batch, including prompts; 0: 8,192, or context_tokens if that is "
                "more"
            ),
        ),
    ] = 0
    recompute_activations: Annotated[
        bool,
        Meta(
            description=(
                "recompute layers in the backward pass instead of keeping their activations: "
                "the same gradients, less memory, more time"
            )
        ),
    ] = False
    offload_activations: Annotated[
        bool,
        Meta(
            description=(
                "with recompute_activations on cuda: keep the inputs of layers in host memory "
                "between the passes"
            )
        ),
    ] = False
    attention: Annotated[
        Literal["auto", "blocks"],
        Meta(
            description=(
                "attention on cuda: auto uses block kernels, or tables, which are slower, if a "
                "block kernel cannot be compiled or gives other results; blocks refuses tables"
            )
        ),
    ] = "auto"
    optimizer: Annotated[
        str,
        Named("optimizer", file_names("training/optimizers")),
        Meta(
            description=(
                "AdamW with moments in float32 (8 bytes per parameter; fused: one pass over "
                "all parameters, on cpu; offloaded: in host memory, on cuda), in bfloat16 (4) "
                "or in 8-bit blocks (2)"
            )
        ),
    ] = "adamw"
    lr: Annotated[float, BASIC, Meta(gt=0, description="AdamW's learning rate after warm-up")] = (
        3e-4
    )
    lr_warmup_steps: Annotated[
        int, Meta(ge=0, description=("steps of linear warm-up of the learning rate"))
    ] = 10
    lr_schedule: Annotated[
        Literal["constant", "linear", "cosine"], Meta(description="after warm-up")
    ] = "constant"
    weight_decay: Annotated[
        float, Meta(ge=0, description=("AdamW's weight decay, of matrices only"))
    ] = 0.0
    beta1: Annotated[float, Meta(ge=0, lt=1, description="AdamW's decay of the mean gradient")] = (
        0.9
    )
    beta2: Annotated[
        float, Meta(ge=0, lt=1, description=("AdamW's decay of the mean squared gradient"))
    ] = 0.99
    grad_clip: Annotated[float, Meta(gt=0, description="gradients are clipped to this norm")] = 1.0
    ema: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description=(
                "decay of an average of the weights: a version's weight relative to the next "
                "one's; 0: no average"
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
        Meta(ge=0, description="steps between evaluations; 0: only at the start and the end"),
    ] = 25
    checkpoint_every: Annotated[
        int, Meta(ge=0, description="steps between checkpoints; 0: only at the end")
    ] = 100

    def contradictions(self, whole: Config) -> Contradictions:
        if 0 < self.micro_tokens < whole.engine.context_tokens:
            yield (
                ("train.micro_tokens", "engine.context_tokens"),
                "the longest rollout must fit in a micro-batch: micro_tokens must be at least "
                "context_tokens",
            )
        if self.offload_activations and not self.recompute_activations:
            yield (
                ("train.offload_activations", "train.recompute_activations"),
                "only the inputs of recomputed layers are kept in host memory: set "
                "recompute_activations to true",
            )
        if self.offload_activations and self.device == "cpu":
            yield (
                ("train.offload_activations", "train.device"),
                "a processor's activations are in host memory: set offload_activations to false",
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
                "boundary scores tokens before the trainer knows their experts: set proximal "
                "to behaviour, or router_replay to false",
            )
        if self.router_bias_rate and whole.model.lora.rank:
            yield (
                ("train.router_bias_rate", "model.lora.rank"),
                "experts' biases are in the base, which adapters do not change: set "
                "router_bias_rate to 0",
            )
        if self.unit == "rollout" and whole.staleness.on_stale == "restart":
            yield (
                ("train.unit", "staleness.on_stale"),
                "a prompt cannot restart while its rollouts are trained: set unit to group, or "
                "on_stale to mask or drop",
            )
