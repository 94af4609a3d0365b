"""Typed shape of `run.toml`. Invariant: every setting that a run depends on is here, with a unit, a
range and one line of documentation.

It is frozen, and unknown keys are errors (`load.py` says the nearest name). `derived.py` has what
follows from the settings.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from asyncrl.config.engines import ENGINES
from asyncrl.config.loss_names import ADVANTAGES, OBJECTIVES
from asyncrl.config.plugins import Named
from staleness.corrections import Correction, IcePop

Count = Annotated[int, Meta(ge=1)]
Whole = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of run.toml."""


class TaskConfig(Section, frozen=True):
    """The task: prompts, and the verifier of answers."""

    name: Annotated[str, Meta(description="a reasoning-gym data set, or `jsonl`")] = (
        "spell_backward"
    )
    params: Annotated[
        dict[str, Any], Meta(description="the reasoning-gym data set's own parameters")
    ] = {}
    path: Annotated[str, Meta(description="`jsonl`: the file of prompts")] = ""
    eval_path: Annotated[
        str,
        Meta(
            description=(
                "`jsonl`: the file of held-out prompts; empty: the last eval_size lines of path"
            )
        ),
    ] = ""
    verifier: Annotated[
        str,
        Named("verifier", ("exact", "number", "run")),
        Meta(description="`jsonl`: verifier of lines that name none"),
    ] = "exact"
    reward: Annotated[
        Literal["auto", "exact", "score"],
        Meta(
            description=(
                "what is trained: exact, 1 for a right answer and 0 for any other; score, what the "
                "verifier gives; auto, exact where the data set gives partial credit for junk"
            )
        ),
    ] = "auto"
    sandbox: Annotated[
        Literal["auto", "strict", "process"],
        Meta(
            description=(
                "of what judges answers: strict, nothing but the answer in reach; process, it "
                "can be killed; auto, strict where this machine has it"
            )
        ),
    ] = "auto"
    template: Annotated[str, Meta(description="the prompt's text around {question}")] = (
        "{question}\n"
    )
    chat: Annotated[
        bool, Meta(description="render prompts with the model's chat template instead")
    ] = False
    train_size: Annotated[int, Meta(ge=1, description="different training prompts")] = 20_000
    eval_size: Annotated[int, Meta(ge=0, description="held-out prompts; 0: no evaluation")] = 128
    curriculum: Annotated[
        str,
        Named("curriculum", ("in_order", "unsolved", "difficulty")),
        Meta(
            description=(
                "which prompt comes next: each in turn, none that all rollouts solved "
                "lately, or the half solved"
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
        Meta(
            description=(
                "several tasks: under the label of each a table of settings that are not "
                "[task]'s (docs/evaluation.md)"
            )
        ),
    ] = {}
    weights: Annotated[
        dict[str, Any],
        Meta(
            description=(
                "several tasks: by label each one's share of the prompts, or a list with one for "
                "each stage; a task without is evaluated alone"
            )
        ),
    ] = {}


class ModelConfig(Section, frozen=True):
    """The model that learns."""

    path: Annotated[
        str,
        Meta(description="a local Hugging Face model directory; empty: the bundled small model"),
    ] = ""
    warmup_steps: Annotated[
        int,
        Meta(
            ge=0, description="bundled model: supervised steps on the task's own answers, at most"
        ),
    ] = 600
    warmup_accuracy: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="bundled model: share of right greedy answers that ends the warm-up",
        ),
    ] = 0.3
    dtype: Annotated[Literal["float32", "bfloat16"], Meta(description="of the weights")] = "float32"
    output_dtype: Annotated[
        Literal["weights", "float32"],
        Meta(
            description=(
                "type that the output layer computes in, of trainer and embedded engines: that of "
                "the weights, or float32"
            )
        ),
    ] = "weights"


class SglangConfig(Section, frozen=True):
    """Engines that are SGLang servers, one for each rollout actor (docs/sglang.md)."""

    launch: Annotated[
        tuple[str, ...],
        Meta(
            description=(
                "command of a Python that has SGLang, with which each rollout actor starts a "
                "server of its own"
            )
        ),
    ] = ()
    urls: Annotated[
        tuple[str, ...],
        Meta(
            description=(
                "servers that somebody else runs, instead: one for each rollout actor, or "
                "all that are behind the router"
            )
        ),
    ] = ()
    router: Annotated[
        str, Meta(description="address of a router that requests to them go through; empty: none")
    ] = ""
    api_key_file: Annotated[
        str, Meta(description="file with the key that servers ask for; empty: they ask for none")
    ] = ""
    device: Annotated[
        Literal["cpu", "cuda"], Meta(description="what servers that are started run on")
    ] = "cpu"
    tensor_parallel: Annotated[int, Meta(ge=1, description="devices of a server")] = 1
    arguments: Annotated[
        tuple[str, ...], Meta(description="further arguments of a server that is started")
    ] = ()
    interrupt: Annotated[
        Literal["retract", "in_place", "abort"],
        Meta(
            description=(
                "unfinished rollouts at a new version: their cache is recomputed, or kept, "
                "or they are ended and sent again"
            )
        ),
    ] = "retract"
    transfer: Annotated[
        Literal["broadcast", "disk"],
        Meta(description="how a rollout actor gives weights to its server"),
    ] = "broadcast"
    backend: Annotated[Literal["gloo", "nccl"], Meta(description="of that broadcast")] = "gloo"
    host: Annotated[
        str, Meta(description="address of this machine at which servers join that broadcast")
    ] = "127.0.0.1"
    canary: Annotated[
        float,
        Meta(
            ge=0,
            description=(
                "largest difference of a log-probability under new weights, server against "
                "model; 0: by model.dtype"
            ),
        ),
    ] = 0.0


class EngineConfig(Section, frozen=True):
    """The engines that generate."""

    kind: Annotated[
        str,
        ENGINES.named,
        Meta(
            description=(
                "embedded: transformers in the rollout process; sglang: a server for each "
                "rollout actor"
            )
        ),
    ] = "embedded"
    slots: Annotated[
        int, Meta(ge=1, description="rollouts decoded at a time, for each rollout actor")
    ] = 64
    chunk_tokens: Annotated[
        int, Meta(ge=1, description="decode steps between two streamed chunks")
    ] = 8
    context_tokens: Annotated[
        int, Meta(ge=8, description="prompt and response together, at most")
    ] = 256
    kv: Annotated[
        Literal["keep", "recompute"],
        Meta(description="embedded: the cache of unfinished rollouts at a new version"),
    ] = "keep"
    compile: Annotated[
        bool,
        Meta(
            description=(
                "embedded: compiled decode kernels (needs a C++ compiler; 5-12 s, once a machine)"
            )
        ),
    ] = False
    sglang: SglangConfig = SglangConfig()


class GatewayConfig(Section, frozen=True):
    """OpenAI's API for agents, in front of each rollout actor's engine (docs/agents.md)."""

    port: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description=(
                "on loopback, of the first rollout actor; the next has the next one; 0: off"
            ),
        ),
    ] = 0
    session_bytes: Annotated[
        int,
        Meta(ge=1, description="bytes of sessions on disk; then no new session is opened"),
    ] = 16 * 2**30


class AgentConfig(Section, frozen=True):
    """Agents that play a prompt's rollouts as episodes of many turns (docs/agents.md)."""

    run: Annotated[
        str | tuple[str, ...],
        Meta(
            description=(
                "who plays: `module:name`, a program and its arguments, or `http` for programs "
                "that ask for episodes; empty: nobody, a rollout is one turn"
            )
        ),
    ] = ""
    actors: Annotated[int, Meta(ge=1, description="agents processes")] = 1
    concurrency: Annotated[
        int, Meta(ge=1, le=4096, description="episodes at a time, at each agents actor")
    ] = 16
    episode_s: Annotated[
        float,
        Meta(
            gt=0,
            description="seconds for which an agent may have the ball: its calls do not count",
        ),
    ] = 300.0
    call_s: Annotated[float, Meta(gt=0, description="seconds of one call")] = 600.0
    max_calls: Annotated[int, Meta(ge=1, description="calls of an attempt, at most")] = 32
    attempts: Annotated[
        int, Meta(ge=1, description="failed attempts after which an episode is given up")
    ] = 3
    port: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description=(
                "on loopback, of the first agents actor's API; the next has the next one; 0: any"
            ),
        ),
    ] = 0


class RolloutConfig(Section, frozen=True):
    """Generation of rollouts."""

    actors: Annotated[int, Meta(ge=1, description="rollout processes")] = 1
    group_size: Annotated[int, Meta(ge=1, description="rollouts of one prompt")] = 8
    k_min: Annotated[int, Meta(ge=1, description="verdicts a group needs to be trained")] = 2
    max_new_tokens: Annotated[int, Meta(ge=1, description="tokens of a response, at most")] = 32
    temperature: Annotated[float, Meta(gt=0, description="of sampling; evaluation is greedy")] = 1.0
    truncated: Annotated[
        Literal["keep", "mask", "penalize"],
        Meta(
            description=(
                "a response that is cut at its budget: trained as it is, left out of the loss, or "
                "the longer a response the less its reward (DAPO)"
            )
        ),
    ] = "keep"
    overlong_band: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "penalize: tokens before the budget over which the penalty grows to 1; 0: a fifth "
                "of max_new_tokens"
            ),
        ),
    ] = 0
    filter: Annotated[
        Literal["zero_variance", "none"],
        Meta(
            description=(
                "groups left out: those whose rewards are all equal (with reinforce_pp they have "
                "a signal, and stay), or none"
            )
        ),
    ] = "zero_variance"
    filter_patience: Annotated[
        int, Meta(ge=1, description="groups filtered in a row that end the run")
    ] = 512
    accept_floor: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description="share of groups left by the filter that is too small to go on with",
        ),
    ] = 0.01
    sizing: Annotated[
        Literal["fixed", "difficulty"],
        Meta(description="rollouts of a prompt: group_size, or more where it is harder"),
    ] = "fixed"
    group_size_max: Annotated[
        int, Meta(ge=1, description="rollouts of the hardest prompt, where sizing is difficulty")
    ] = 16
    mode: Annotated[
        Literal["in_flight", "batch"],
        Meta(
            description=(
                "the rest, once a step has its groups: goes on, or is interrupted, kept, and "
                "leased again first"
            )
        ),
    ] = "in_flight"
    overprovision: Annotated[
        float, Meta(ge=1, description="groups started for each that a step needs")
    ] = 1.0
    max_resumes: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "times a rollout may be taken back and go on before it is given up; 0: any number"
            ),
        ),
    ] = 0
    lease_s: Annotated[
        float, Meta(gt=0, description="seconds a rollout may stay with one rollout actor, at most")
    ] = 600.0
    attempts: Annotated[
        int, Meta(ge=1, description="leases of a rollout before it is given up")
    ] = 3


class EvaluationConfig(Section, frozen=True):
    """Evaluation: each held-out prompt is answered greedily, and sampled if that is asked for."""

    samples: Annotated[
        int, Meta(ge=0, description="sampled answers to each held-out prompt; 0: greedy ones only")
    ] = 0
    temperature: Annotated[float, Meta(gt=0, description="of those answers")] = 1.0
    pass_at: Annotated[
        tuple[Count, ...],
        Meta(description="each k of pass@k: of k such answers one at least is right"),
    ] = ()


Credit = Literal["episode", "to_go"]
"""Values of `train.credit`."""


class TrainConfig(Section, frozen=True):
    """Optimizer steps."""

    steps: Annotated[int, Meta(ge=1, description="optimizer steps")] = 200
    device: Annotated[
        Literal["cpu", "cuda"],
        Meta(description="where the model learns; cuda: the first GPU that the trainer may use"),
    ] = "cpu"
    batch_groups: Annotated[int, Meta(ge=1, description="groups in a step")] = 16
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
                "what is trained together: a group, or a rollout once k_min of the others "
                "are judged"
            )
        ),
    ] = "group"
    advantage: Annotated[
        str,
        ADVANTAGES.named,
        Meta(description="how much better a rollout did than what is expected of its prompt"),
    ] = "grpo"
    credit: Annotated[
        Credit,
        Meta(
            description=(
                "what a turn of an agent's episode is compared by: the episode's whole reward, or "
                "what was to come of it at that turn (advantage rloo or dr_grpo)"
            )
        ),
    ] = "episode"
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
        Meta(description="what is minimized, per token"),
    ] = "clip"
    loss_mean: Annotated[
        Literal["auto", "token", "rollout", "constant"],
        Meta(
            description=(
                "what counts alike in a step: each token, or each rollout; constant: tokens, "
                "divided by max_new_tokens and the rollouts; auto: rollout for gspo, else token"
            )
        ),
    ] = "auto"
    loss_divisor: Annotated[
        Literal["kept", "all"],
        Meta(
            description=(
                "tokens that count in what the loss is divided by: those trained, or those that "
                "corrections left out too"
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
    passes: Annotated[
        int, Meta(ge=1, description="times that a step trains each of its minibatches")
    ] = 1
    replay_groups: Annotated[
        int,
        Meta(ge=0, description="groups of a step that were trained before, at their true versions"),
    ] = 0
    micro_tokens: Annotated[
        int, Meta(ge=1, description="tokens of a micro-batch, prompts included")
    ] = 8192
    lr: Annotated[float, Meta(gt=0, description="AdamW's learning rate after warm-up")] = 3e-4
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
                "what a version counts in an average of the weights, of what the next one counts; "
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
        int, Meta(ge=0, description="steps between evaluations; 0: at the start and the end only")
    ] = 25
    checkpoint_every: Annotated[
        int, Meta(ge=0, description="steps between checkpoints; 0: at the end only")
    ] = 100


class ReferenceConfig(Section, frozen=True):
    """The reference policy, which the policy that learns stays near (docs/policies.md)."""

    coefficient: Annotated[
        float, Meta(ge=0, description="weight of the divergence from it; 0: there is none")
    ] = 0.0
    path: Annotated[
        str,
        Meta(description="its model directory; empty: the model that the run starts from"),
    ] = ""
    server: Annotated[
        str,
        Meta(description="http://host:port of an SGLang that scores with it, instead; empty: none"),
    ] = ""
    api_key_file: Annotated[
        str,
        Meta(description="file with the key that this server asks for; empty: it asks for none"),
    ] = ""
    kl_in: Annotated[
        Literal["loss", "reward", "advantage"],
        Meta(
            description=(
                "added to each token's loss; or its sum subtracted from the rollout's reward; or "
                "subtracted from each token's advantage"
            )
        ),
    ] = "loss"
    estimator: Annotated[
        Literal["k1", "k2", "k3"],
        Meta(
            description=(
                "of the divergence: in a loss k2 has its gradient, k3 (GRPO's) that of the other "
                "direction; elsewhere k1 has"
            )
        ),
    ] = "k2"
    reset_every: Annotated[
        int,
        Meta(ge=0, description="steps after which it becomes the current policy; 0: never"),
    ] = 0


class TeacherConfig(Section, frozen=True):
    """The teacher of on-policy distillation: what it finds likely is good (docs/policies.md)."""

    coefficient: Annotated[
        float,
        Meta(
            ge=0,
            description=(
                "of log(teacher / current) of each token, added to its advantage; 0: no teacher"
            ),
        ),
    ] = 0.0
    path: Annotated[str, Meta(description="its model directory")] = ""
    server: Annotated[
        str,
        Meta(description="http://host:port of an SGLang that scores with it, instead; empty: none"),
    ] = ""
    api_key_file: Annotated[
        str,
        Meta(description="file with the key that this server asks for; empty: it asks for none"),
    ] = ""


class SupervisedConfig(Section, frozen=True):
    """Examples that are learned beside what is rewarded (docs/policies.md)."""

    coefficient: Annotated[
        float, Meta(ge=0, description="weight of the loss of the examples; 0: there is none")
    ] = 0.0
    path: Annotated[str, Meta(description="JSONL file; each line has a prompt and a response")] = ""
    batch: Annotated[int, Meta(ge=1, description="examples drawn for each update")] = 16


class StalenessConfig(Section, frozen=True):
    """Age of experience: how old it may be, and what is done about that."""

    max_lag: Annotated[
        int, Meta(ge=0, description="versions; no token older than this enters a loss")
    ] = 4
    depth: Annotated[
        int, Meta(ge=0, description="steps that generation may run ahead of training")
    ] = 1
    window: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "groups, from the oldest on, that may be trained out of turn; 0: any, the "
                "oldest finished first"
            ),
        ),
    ] = 0
    finish_on: Annotated[
        Literal["mixed", "own"],
        Meta(
            description=(
                "a rollout goes on under a newer version, or ends under the one it began with"
            )
        ),
    ] = "mixed"
    proximal: Annotated[
        Literal["behaviour", "boundary", "snapshot", "recompute", "loglinear", "ema"],
        Meta(description="the policy that the ratio is clipped around"),
    ] = "behaviour"
    on_stale: Annotated[
        Literal["mask", "restart", "drop", "train"],
        Meta(
            description=(
                "tokens over max_lag: left out of the loss, their prompt started again, "
                "their group dropped, or trained"
            )
        ),
    ] = "mask"
    correction: Annotated[
        tuple[Correction, ...],
        Meta(
            description="which tokens are left out, and what the others weigh, one after the other"
        ),
    ] = (IcePop(),)
    alarm_k3: Annotated[
        float,
        Meta(
            gt=0,
            description=(
                "alarm where current and behaviour policy are further apart than this (mean k3)"
            ),
        ),
    ] = 0.1
    alarm_masked: Annotated[
        float,
        Meta(gt=0, le=1, description="alarm where a larger share of a step's tokens is left out"),
    ] = 0.5
    alarm_ess: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description="alarm where the effective share of a step's rollouts is smaller",
        ),
    ] = 0.1
    alarm_proximal: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description=(
                "alarm where a larger share of a step's tokens has the current policy in place "
                "of its proximal one"
            ),
        ),
    ] = 0.1
    alarm_truncated: Annotated[
        float,
        Meta(
            gt=0, le=1, description="alarm where a larger share of responses is cut at its budget"
        ),
    ] = 0.5


class PublicationConfig(Section, frozen=True):
    """Publication of weights to engines."""

    bucket_bytes: Annotated[int, Meta(ge=1024, description="bytes broadcast at a time")] = (
        32 * 2**20
    )
    deadline_s: Annotated[
        float,
        Meta(gt=0, description="seconds for each phase; an engine that misses one is replaced"),
    ] = 60.0
    host: Annotated[
        str,
        Meta(
            description=(
                "address at which the trainer meets engines for weights; loopback: in a file"
            )
        ),
    ] = "127.0.0.1"


class RewardConfig(Section, frozen=True):
    """Reward actors, which judge answers."""

    actors: Annotated[int, Meta(ge=1, description="reward processes")] = 1
    concurrency: Annotated[
        int, Meta(ge=1, description="answers judged at a time, for each reward actor")
    ] = 16


class MachineConfig(Section, frozen=True):
    """The part of this machine that a run may use."""

    cores: Annotated[int, Meta(ge=0, description="cores to use; 0: all this process may use")] = 0
    trainer_cores: Annotated[int, Meta(ge=0, description="of those, the trainer's; 0: half")] = 0


class JournalConfig(Section, frozen=True):
    """The journal of events on disk."""

    commit_ms: Annotated[
        int,
        Meta(
            ge=0, description="milliseconds between commits of the journal; 0: each event at once"
        ),
    ] = 100


class MetricsConfig(Section, frozen=True):
    """Metrics for Prometheus."""

    port: Annotated[
        int, Meta(ge=0, le=65535, description="port that Prometheus is answered at; 0: off")
    ] = 0
    host: Annotated[
        str, Meta(description="address of this machine that it is answered at; 0.0.0.0: each")
    ] = "127.0.0.1"


class SupervisionConfig(Section, frozen=True):
    """Supervision of actors: how long the run waits, and how often it starts one again."""

    restarts: Annotated[
        int, Meta(ge=0, description="restarts of a rollout or reward actor within restart_window_s")
    ] = 5
    restart_window_s: Annotated[
        float, Meta(gt=0, description="seconds over which restarts are counted")
    ] = 300.0
    start_s: Annotated[
        float,
        Meta(
            gt=0,
            description="seconds in which actors must have come; of rollout actors one is enough",
        ),
    ] = 300.0
    stall_s: Annotated[
        float,
        Meta(
            gt=0,
            description=(
                "seconds without a token or a step that end the run, unless the trainer is at work"
            ),
        ),
    ] = 300.0
    compute_s: Annotated[
        float,
        Meta(
            gt=0,
            description="seconds that the trainer may take for a micro-batch or an optimizer step",
        ),
    ] = 900.0
    checkpoint_s: Annotated[
        float, Meta(gt=0, description="seconds that the trainer may take for a checkpoint")
    ] = 1800.0
    grace_s: Annotated[float, Meta(gt=0, description="seconds to drain when asked to stop")] = 5.0


class RunConfig(Section, frozen=True):
    """One run: its directory, its seed, its logs."""

    dir: Annotated[str, Meta(description="the run's own directory; empty: runs/<task>-<time>")] = ""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="of everything random")] = 0
    log: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="level of the logs")
    ] = "info"


class Config(Section, frozen=True):
    """The whole run."""

    task: TaskConfig = TaskConfig()
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    gateway: GatewayConfig = GatewayConfig()
    agent: AgentConfig = AgentConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    train: TrainConfig = TrainConfig()
    reference: ReferenceConfig = ReferenceConfig()
    teacher: TeacherConfig = TeacherConfig()
    supervised: SupervisedConfig = SupervisedConfig()
    staleness: StalenessConfig = StalenessConfig()
    publication: PublicationConfig = PublicationConfig()
    journal: JournalConfig = JournalConfig()
    metrics: MetricsConfig = MetricsConfig()
    machine: MachineConfig = MachineConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    run: RunConfig = RunConfig()


VARIABLES: dict[str, str] = {
    "ASYNCRL_MAX_LAG": "staleness.max_lag",
    "ASYNCRL_DEPTH": "staleness.depth",
    "ASYNCRL_WINDOW": "staleness.window",
    "ASYNCRL_ON_STALE": "staleness.on_stale",
    "ASYNCRL_CORRECTION": "staleness.correction",
    "ASYNCRL_OVERPROVISION": "rollout.overprovision",
    "ASYNCRL_ENGINE": "engine.kind",
    "ASYNCRL_LEASE_S": "rollout.lease_s",
    "ASYNCRL_JOURNAL_MS": "journal.commit_ms",
    "ASYNCRL_METRICS_PORT": "metrics.port",
    "ASYNCRL_RUN_DIR": "run.dir",
    "ASYNCRL_LOG": "run.log",
}
"""The closed set of environment variables, and the setting each stands for. `--set` wins over a
variable, a variable over run.toml."""
