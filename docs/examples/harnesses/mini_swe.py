"""mini-swe-agent (2.4) as an agent: `agent.run = ["python", "mini_swe.py"]`."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would be downloaded

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_path
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

config = yaml.safe_load(get_config_path("mini").read_text())
model = LitellmModel(
    model_name=f"openai/{os.environ['OPENAI_MODEL']}",
    cost_tracking="ignore_errors",
    **{key: value for key, value in config["model"].items() if key != "model_kwargs"},
)
names = ("system_template", "instance_template", "step_limit")
own = {key: value for key, value in config["agent"].items() if key in names}
print(DefaultAgent(model, LocalEnvironment(), **own).run(os.environ["ASYNCRL_PROMPT"]))
