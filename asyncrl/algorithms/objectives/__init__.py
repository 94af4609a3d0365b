"""Objectives: the loss of each token. Invariant: an objective returns one loss a token, 0 outside
of the mask, and reduces nothing over tokens.

`r` is `exp(log_ratio)`, the ratio of current to proximal policy (to behaviour policy where there is
no proximal one), and A the advantage. No torch here: the configuration imports this.
"""

from asyncrl.algorithms.objectives.gspo import Gspo
from asyncrl.algorithms.objectives.objective import ClipBounds, Objective, TokenLoss, token_loss
from asyncrl.algorithms.objectives.one_forward import OneForward
from asyncrl.algorithms.objectives.ppo import Clip, DualClip
from asyncrl.algorithms.objectives.reinforce import Cispo, Reinforce, Topr

__all__ = [
    "Cispo",
    "Clip",
    "ClipBounds",
    "DualClip",
    "Gspo",
    "Objective",
    "OneForward",
    "Reinforce",
    "TokenLoss",
    "Topr",
    "token_loss",
]
