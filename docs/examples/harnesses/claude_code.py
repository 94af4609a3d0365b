"""Claude Code as an agent: `agent.run = ["python", "claude_code.py"]`, in dialect Messages."""

import os
import shutil
import subprocess
from pathlib import Path

# the folder is in the prompt: a later attempt must have the same, to be answered from the journal
work = Path(
    "/tmp/claude-code", f"{os.environ['ASYNCRL_PROMPT_INDEX']}-{os.environ['ASYNCRL_SEED']}"
)
shutil.rmtree(work, ignore_errors=True)
(home := work / "home").mkdir(parents=True)
quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "HOME": str(home)}
command = ["claude", "-p", os.environ["ASYNCRL_PROMPT"], "--allowedTools", "Bash,Read,Edit,Write"]
subprocess.run(command, cwd=work, env=os.environ | quiet, stdin=subprocess.DEVNULL, check=True)
