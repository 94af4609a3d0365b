"""spa.py: a scorer that says each turn's share of the reward (SPA-RL, arXiv 2505.20732).

Turn t is worth `v_t + EXECUTABLE [its action could be executed]`, where the v_t of an estimator add
up to about the episode's reward. `asyncrl` has no estimator: the authors fit one to episodes that
they collected before, and `SCORER` is a server that returns its v_t. Train with
`train.credit = "to_go"` and `train.advantage = "rloo"`.

As published, EXECUTABLE is 0.5 of a whole success, for each turn: two that are executed and lead
nowhere are worth as much as a success. 0, the default here, only moves rewards between turns."""

import json
from typing import Any
from urllib.request import Request, urlopen

from asyncrl.agents import MODEL, AgentEpisode
from asyncrl.agents.examples.guess_the_number import Game

SCORER = "http://127.0.0.1:30001/shares"
EXECUTABLE = 0.0


async def solve(client: Any, episode: AgentEpisode) -> float:
    """Play the game, and ask for the shares at its end. Put your own environment for `Game`; here
    an action can be executed if it says a number."""
    game, done, total = Game(), False, 0.0
    messages = [{"role": "user", "content": game.reset(episode.entry, episode.seed)}]
    while not done:
        answer = await client.chat.completions.create(model=MODEL, messages=messages)
        said = answer.choices[0].message.content or ""
        text, reward, done, *_ = game.step(said)
        total += reward
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": text}]
    turns = [message["content"] for message in messages[1::2]]
    shares = await episode.once("shares", lambda: asked(messages[0]["content"], turns, total))
    worth = [
        float(v) + EXECUTABLE * any(map(str.isdecimal, turn))
        for v, turn in zip(shares, turns, strict=True)
    ]
    for call, value in enumerate(worth):
        await episode.reward(value, call=call)
    return sum(worth)


def asked(prompt: str, turns: list[str], reward: float) -> list[float]:
    """The shares of the turns. Raises where there is not one for each: the attempt has failed."""
    body = json.dumps({"prompt": prompt, "turns": turns, "reward": reward}).encode()
    with urlopen(Request(SCORER, body, {"content-type": "application/json"}), timeout=60) as reply:
        shares = json.load(reply)["shares"]
    if len(shares) != len(turns):
        raise ValueError(f"the scorer gave {len(shares)} shares of {len(turns)} turns")
    return [float(share) for share in shares]
