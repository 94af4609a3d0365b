"""Episodes of agents in a world of their own: the coordinator's parts that play them, with fake
engines and scripted agents, in an order that a seed draws. Links and processes are mailboxes here,
so a thousand seeds are a matter of a minute.

episode_actors.py      fake engines and fake agents actors
episode_world.py       one seed: the parts, their order, and the faults
episode_checker.py     the invariants of episodes, after every event and message: those of
                       `asyncrl.simulation.checker`, of which the whole simulation has its own
"""
