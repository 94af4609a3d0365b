"""Looking at runs: compare, rollouts, top, report and page. Invariant: a run that is looked at is
not changed, held up or waited for, and nothing of it is executed.

seen_curve.py       its curve, read on as it grows
compare.py          runs side by side
seen_rollouts.py    a rollout as it is seen in a journal
newest_rollouts.py  those that ended last, read from the journal's end
seen_messages.py    a rollout as messages with roles, calls and results
expected_answers.py right answers by the run's task
rollout_records.py  what the model said, on a terminal and in a file
followed_rollouts.py what it says, as rollouts end
top.py              the live display, from outside
html_page.py        HTML that cannot be broken out of
plots.py            lines as SVG
style.py            the style sheet of report and page
flow_part.py        the flow as a picture, with who waits for whom
seen_turns.py       an episode as a tree of turns
rollout_part.py     rollouts, with tokens in colours
run_parts.py        all parts of a report
report.py           all of them as one file
run_page.py         the same parts, renewed: the page of a living run (page.js is its script)
page_process.py     the process that serves it
"""
