"""Programs that a model wrote, each run in a fresh sandbox.

    program.py      a program, its limits, and its result: pure
    languages.py    how a source text of each language becomes a program
    runner.py       runs one and waits: the only code that starts, feeds, reads and ends them
    under_trio.py, under_asyncio.py     the same for code of these
    bubblewrap.py, docker.py, unconfined.py     the kinds of sandboxes
    loopback.py     a program that speaks TCP to the gateway's socket, begun by forwarder.py

`asyncrl.sandbox` forks workers of ours that have imported what they need; these are foreign
programs, which begin with exec.
"""
