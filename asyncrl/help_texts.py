"""The texts of `--help`: what each verb does, examples, and where settings come from."""

from __future__ import annotations

DESCRIPTION = "Train language models with reinforcement learning while generation never stops."
TRAIN = "Train: start rollout, reward and trainer actors on this machine, and show what they do."
SFT = (
    "Learn the data's own answers (supervised fine-tuning) with the trainer, checkpoints and curve "
    "of any run. Its model is a model.path for reinforcement learning."
)
WHY = (
    "Explain in a few sentences the state of a run: which side is idle, and what it waits for. The "
    "run may be alive, stalled, or killed."
)
COMPARE = (
    "Show runs side by side: the settings in which they differ, and their results. They may be "
    "alive, or over."
)
RUNS = (
    "List the runs in a directory, the newest first: state, steps, held-out accuracy, and the time "
    "of devices that each has used."
)
PAGE = (
    "Serve a page for browsers: of a run that lives or is over, or of all runs in a folder. It has "
    "curves that can be laid over each other, what limits the run, the flow, and rollouts to "
    "browse. It changes nothing, and runs go on without it. On another host than loopback it has "
    "a key."
)
ROLLOUTS = (
    "Show the model's responses: the newest rollouts that ended, the newest first, with messages, "
    "calls and results, reward, expected answer and versions; follow them; or write them to a file."
)
TOP = (
    "Show the live display of a run that was started elsewhere, until it ends. Ctrl-C ends the "
    "display alone."
)
REPORT = (
    "Write one HTML file about a run, alive or over: what happened, its curves, where time and "
    "tokens went, its newest rollouts, what to change next. It has no script and loads nothing."
)
SWEEP = (
    "End what the agents of a run that is over, or was killed, left outside of it: containers, "
    "remote sandboxes, directories. A run that goes on does so by itself."
)
AGENT = (
    "Take part in a run whose launcher is on another machine: start its rollout actors here, until "
    "it is over. The machine needs asyncrl and the run's join.token, and no model."
)
CHECK = "Check a configuration and show what follows from it. Starts nothing, writes nothing."
PLAY = (
    "Play one episode of the run's agent here, and print each context, response, reward and error. "
    "Without an agent: one prompt, its response and its verdict. Trains nothing."
)
TASKS = "List the tasks, each with an example and if the bundled model can learn it; or show one."
FETCH = (
    "Fetch the copy of a run from an object store (run.copy) into a directory, which `asyncrl "
    "train --resume` goes on from. Credentials are those of the environment."
)
MERGE = (
    "Merge models of one architecture into a new model directory: the mean of their weights, or "
    "with --base the base plus their differences from it. A run stands for its model."
)
SETTINGS = "List the basic settings; or all settings of a section, with defaults, ranges and units."
INIT = (
    "Write a run.toml with comments for a task, or for a file of prompts, with its lengths. It "
    "refuses to write over a file."
)
SIMULATE = (
    "Run the whole system in virtual time, in this process, with fake engines and every kind of "
    "fault, and check every invariant after every event. A seed decides everything: one that "
    "fails is printed, and fails again. With a run.toml there are no faults: it forecasts that run "
    "on a cluster, by models of engines, lengths, trainer and network."
)
CALIBRATE = (
    "Fit the models of `asyncrl simulate run.toml` from a run, alive or over, and write them to "
    "its models.toml. Further runs, with other engine.slots, give further points of the "
    "engine."
)
EXAMPLES = """\
examples:
  asyncrl tasks
  asyncrl init spell_backward
  asyncrl init questions.parquet --set task.prompt_key=question --set task.answer_key=gold
  asyncrl train run.toml
  asyncrl settings rollout
  asyncrl train run.toml --set task.name=chain_sum --set train.steps=50
  asyncrl train --resume runs/rotate_matrix-20260101-120000
  asyncrl why
  asyncrl compare runs/a runs/b
  asyncrl rollouts runs/a --reward-below 0.5 --last 3
"""
SOURCES = """\
settings: --set wins over an ASYNCRL_* variable, that over run.toml, that over the default.
`asyncrl settings` lists the basic ones, `asyncrl settings SECTION` all of a section.
exit status: 0 the run ended well, 1 it failed, 2 the input is wrong and nothing was trained.
"""
PLAYED = """\
examples:
  asyncrl play run.toml --prompt 3
  asyncrl play --set agent.run=./my_agent.py:solve --fake "I do not know" --fake "42"

settings: as for train. The model is decoded in this process, whatever engine.kind is.
exit status: 0 there is a reward, 1 the agent failed or there is none, 2 the input is wrong.
"""
