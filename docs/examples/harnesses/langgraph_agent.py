"""An agent of LangGraph (1.2) with two roles: `agent.run = ["python", "langgraph_agent.py"]`."""

import os

from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def model(role: str) -> ChatOpenAI:
    headers = {"x-asyncrl-role": role}
    return ChatOpenAI(model=os.environ["OPENAI_MODEL"], default_headers=headers)


worker = create_react_agent(model("worker"), [add])
done = worker.invoke({"messages": [("user", os.environ["ASYNCRL_PROMPT"])]})
said = [("user", f"Give the answer alone: {done['messages'][-1].content}")]
print(model("summarizer").invoke(said).content)
