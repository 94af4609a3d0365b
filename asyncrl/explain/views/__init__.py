"""Looking at runs: compare, rollouts, top, report and page. Invariant: a run that is looked at is
not changed, held up or waited for, and nothing of it is executed.

seen_curve.py       its curve, read on as it grows
curve_columns.py    the curve as columns, thinned
compare.py          runs side by side
seen_rollouts.py    a rollout as it is seen in a journal
newest_rollouts.py  those that ended last, read from the journal's end
seen_messages.py    a rollout as messages with roles, calls and results
expected_answers.py right answers by the run's task
rollout_records.py  what the model said, on a terminal and in a file
followed_rollouts.py what it says, as rollouts end
top.py              the live display, from outside

Page and report, of the same parts:

html_page.py        HTML that cannot be broken out of
assets/             style sheets, scripts, and uPlot, which draws the curves
assets.py           their names, and where what others wrote is from
seen_run.py         a run at one moment
head_part.py        its name and state; strip_part.py figures with spark_line.py small curves
diagnosis_part.py   what limits it
curve_part.py       its charts, and their numbers
flow_part.py        the flow as a picture, with who waits for whom
kept_rollouts.py    rollouts that are kept; rollout_table.py as a table
rollout_part.py     one of them, with tokens in colours; seen_turns.py a tree
accounts_part.py    totals, tokens, time, publications, alarms
settings_part.py    its settings
run_parts.py        all parts
page_frame.py       what is around them
report.py           all of them as one file
run_page.py         the same parts, renewed: the page of a run
list_part.py        runs as a table; runs_page.py the page of a folder of runs
made_part.py        a piece that is made seldom
page_gate.py        who may look
page_process.py     the process that serves the page of a run; serving.py `asyncrl page`
"""
