"""httpx: server-sent events, read line by line."""

import json
import os

import httpx


class Chat:
    """A conversation with a streaming endpoint."""

    def __init__(self, base_url: str, key: str) -> None:
        self.http = httpx.Client(
            base_url=base_url, headers={"Authorization": f"Bearer {key}"}, timeout=120
        )
        self.messages: list[dict[str, str]] = []

    def ask(self, text: str) -> str:
        self.messages.append({"role": "user", "content": text})
        body = {
            "model": "local",
            "messages": self.messages,
            "stream": True,
            "max_completion_tokens": 50,
        }
        said = ""
        with self.http.stream("POST", "/chat/completions", json=body) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    said += choice["delta"].get("content") or ""
        self.messages.append({"role": "assistant", "content": said})
        return said


def main() -> None:
    chat = Chat(os.environ["OPENAI_BASE_URL"] + "/", os.environ["OPENAI_API_KEY"])
    problem = os.environ["ASYNCRL_PROMPT"].strip()
    print(chat.ask(f"I have a problem I need your help with. {problem}\nWhat is the answer?"))


main()
