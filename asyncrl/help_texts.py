"""The texts of `--help`: what each verb does, examples, and where settings come from."""

from __future__ import annotations

DESCRIPTION = "Train language models with reinforcement learning while generation never stops."
TRAIN = "Start a training run on this machine, or resume one, and show its progress."
SFT = (
    "Learn the data's own answers (supervised fine-tuning) with the trainer, checkpoints and curve "
    "of any run. The result can be the model.path of a run with rewards."
)
WHY = (
    "Explain the state of a run in a few sentences: which side is idle, and what it waits for. The "
    "run may be alive, stalled or killed."
)
COMPARE = (
    "Show runs side by side: the settings in which they differ, and their results. They may be "
    "alive or over."
)
RUNS = (
    "List the runs in a directory, the newest first: state, steps, held-out accuracy and device "
    "time."
)
PAGE = (
    "Serve a page for browsers: of one run, alive or over, or of all runs in a folder. It shows "
    "curves that can be overlaid, what limits the run, its flow and its rollouts. It changes "
    "nothing, and runs do not depend on it. On any host but loopback it requires a key."
)
ROLLOUTS = (
    "Show the model's responses: rollouts that ended, the newest first, with messages, calls and "
    "results, reward, expected answer and versions; follow them; or write them to a file."
)
TOP = (
    "Show the live display of a run that was started elsewhere, until it ends. Ctrl-C ends only "
    "the display."
)
REPORT = (
    "Write one HTML file about a run, alive or over: what happened, its curves, where time and "
    "tokens went, its newest rollouts, what to change next. It has no script and loads nothing."
)
SWEEP = (
    "Remove what the agents of a finished or killed run left outside it: containers, remote "
    "sandboxes, directories. A live run does this by itself."
)
AGENT = (
    "Take part in a run whose launcher is on another machine: run its rollout actors here until it "
    "is over. This machine needs asyncrl and the run's join.token, but no model."
)
CHECK = "Check a configuration and show what follows from it. Starts nothing, writes nothing."
PLAY = (
    "Play one episode of the run's agent here, and print each context, response, reward and error. "
    "Without an agent: one prompt, its response and its verdict. Trains nothing."
)
TASKS = "List the tasks, each with an example and whether the bundled model learns it; or show one."
FETCH = (
    "Fetch the copy of a run from an object store (run.copy) into a directory, from which `asyncrl "
    "train --resume` continues. Credentials come from the environment."
)
MERGE = (
    "Merge models of one architecture into a new model directory: the mean of their weights, or "
    "with --base the base plus their differences from it. A run's directory stands for its model."
)
SETTINGS = "List the basic settings; or all settings of a section, with defaults, ranges and units."
INIT = (
    "Write a commented run.toml for a task, or for a file of prompts, with its lengths. It never "
    "overwrites a file."
)
SIMULATE = (
    "Run the whole system in virtual time, in this process, with fake engines and every kind of "
    "fault, and check every invariant after every event. A seed determines everything; a failing "
    "one is printed. With a run.toml there are no faults: it forecasts that run "
    "on a cluster, by models of engines, lengths, trainer and network."
)
CALIBRATE = (
    "Fit the models of `asyncrl simulate run.toml` to a run, alive or over, and write them to its "
    "models.toml. More runs, with other engine.slots, give more points of the engine's speed."
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
settings: --set wins over an ASYNCRL_* variable, a variable over run.toml, run.toml over defaults.
`asyncrl settings` lists the basic ones, `asyncrl settings SECTION` all of a section.
exit status: 0 the run ended well, 1 it failed, 2 the input is wrong and nothing was trained.
"""
PLAYED = """\
examples:
  asyncrl play run.toml --prompt 3
  asyncrl play --set agent.run=./my_agent.py:solve --fake "I do not know" --fake "42"

settings: as for train. The model decodes in this process, whatever engine.kind is.
exit status: 0 there is a reward, 1 the agent failed or there is none, 2 the input is wrong.
"""
