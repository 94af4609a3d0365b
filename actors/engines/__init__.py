"""The kinds of engine that asyncrl brings, one file each: what it can do, what is checked before a
run, and how a rollout actor puts one together. Nothing here needs torch to be imported."""
