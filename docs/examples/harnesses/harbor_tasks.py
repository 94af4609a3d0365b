"""Harbor's task folders as a data set: `python harbor_tasks.py FOLDER > tasks.jsonl`, and then
`task.name = "data"`, `task.path = "tasks.jsonl"`.

A task is a folder with instruction.md and task.toml, environment/ (a Dockerfile) and tests/. A line
has the instruction as its prompt, and for the agent the folder, its `[agent]` and `[verifier]`
tables, and its image if it names one. The agent starts the container and runs tests/test.sh in it.
"""

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """The tasks below a folder, by name. Raises ValueError for one that is not whole."""
    for settings in sorted(folder.rglob("task.toml")):
        task = settings.parent
        for needed in ("instruction.md", "tests"):
            if not (task / needed).exists():
                raise ValueError(
                    f"{task} has a task.toml and no {needed}: it is no task of Harbor's"
                )
        said = tomllib.loads(settings.read_text())
        yield {
            "prompt": (task / "instruction.md").read_text(),
            "answer": "",
            "folder": str(task.absolute()),
            "image": said.get("environment", {}).get("docker_image", ""),
            **{name: said.get(name, {}) for name in ("agent", "verifier")},
        }


if __name__ == "__main__":
    for row in rows(Path(sys.argv[1])):
        print(json.dumps(row))
