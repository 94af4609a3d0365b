"""A whole run in one process and in virtual time, with every fault that has a name; from one seed,
so that what it finds can be replayed.

task_order.py   the order of tasks, from the seed
network.py      pipes in memory: delayed, cut, half-open, frozen
policy.py       weights that are a number, and the tokens they sample: exact, so that equal weights
                prove equal training
fakes.py        scripted engine, receiver, verifiers and prompts
fake_learner.py a learner that adds up what it is given
agent_script.py an agent, from its seed
fake_player.py  what plays such agents in an agents actor
sim_disk.py     what outlives a process: journal and checkpoints
sim_process.py  an actor that is killed, stopped and started again
world.py        the coordinator and the actors as tasks, supervised by the product's own supervisor
fake_world.py   a world of fakes, whose disk outlives it
observer.py     what is told of a world, to whoever checks or measures
injector.py     injection of faults into a world, and their count
fault_kinds.py  the kinds of fault
agent_faults.py those that agents alone meet
faults.py       a plan of faults from the seed
causes.py       the faults that can have caused a bad end
shapes.py       settings, speeds and themes from the seed
run.py          one seed; `asyncrl simulate`
command.py      many seeds, counted
checker/        the invariants, recounted after every event from events and from what engine and
                learner did
"""
