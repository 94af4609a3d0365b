"""Commands that look at runs: compare, rollouts, top and report. Invariant: a run that is looked at
is not changed, held up or waited for, and nothing of it is executed.

run_figures.py      the numbers of a run, from its curve, status and summary
compare.py          runs side by side
seen_rollouts.py    the rollouts that a journal has
rollout_records.py  what the model said, on a terminal and in a file
top.py              the live display, from outside
next_changes.py     what to change next
html_page.py        HTML that cannot be broken out of
plots.py            lines as SVG
report.py           all of it as one page
"""
