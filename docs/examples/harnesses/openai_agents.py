"""An agent of the OpenAI Agents SDK (0.24): `agent.run = ["python", "openai_agents.py"]`."""

import os

from agents import Agent, Runner, function_tool


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


agent = Agent("solver", tools=[add], model=os.environ["OPENAI_MODEL"])
print(Runner.run_sync(agent, os.environ["ASYNCRL_PROMPT"]).final_output)
