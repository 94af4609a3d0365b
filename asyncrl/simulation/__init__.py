"""A whole run in one process and in virtual time, with every fault that we can name; from one seed,
so that what it finds can be replayed.

schedule.py   which task runs next, from the seed
wires.py      pipes in memory: delayed, cut, half-open, frozen
policy.py     weights that are a number, and the tokens they sample: exact, so that equal weights prove equal training
parts.py      what is scripted: engine, learner, verifiers, prompts
disk.py       what outlives a process: journal and checkpoints
process.py    what is killed, stopped and started again
world.py      the launcher, the coordinator's process and its actors; life after life until the run is over
faults.py     the kinds of fault, and a plan of them from the seed
checker.py    the invariants, recounted from events and from what engine and learner did, after every event
run.py        one seed; `asyncrl simulate`
scale.py      a thousand engines
"""
