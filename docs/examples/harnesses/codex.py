"""Codex as an agent: `agent.run = ["python", "codex.py"]`, in dialect Responses."""

import os
import shutil
import subprocess
from pathlib import Path

# the folder is in the prompt: a later attempt must have the same, to be answered from the journal
work = Path("/tmp/codex", f"{os.environ['ASYNCRL_PROMPT_INDEX']}-{os.environ['ASYNCRL_SEED']}")
shutil.rmtree(work, ignore_errors=True)
(home := work / "home").mkdir(parents=True)
base = f'base_url="{os.environ["OPENAI_BASE_URL"]}", env_key="OPENAI_API_KEY"'
gateway = f'model_providers.gateway={{name="gateway", {base}, wire_api="responses"}}'
command = ["codex", "exec", "-m", os.environ["OPENAI_MODEL"], "-c", "model_provider=gateway"]
command += ["-c", gateway, "--skip-git-repo-check", "--sandbox", "workspace-write"]
command += [os.environ["ASYNCRL_PROMPT"]]
env = os.environ | {"CODEX_HOME": str(home), "HOME": str(home)}
subprocess.run(command, cwd=work, env=env, stdin=subprocess.DEVNULL, check=True)
