"""Agents to learn from, one for each way to write one: `agent.run = "asyncrl.agents.examples.…"`.

guess_the_number.py     an environment's class
calculator.py           a function, with a tool
retry.py                a function, over any task
"""
