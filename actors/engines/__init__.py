"""The kinds of engine that come with asyncrl, one file each: capabilities, checks before a run, and
setup in a rollout actor. Nothing here needs torch to be imported."""
