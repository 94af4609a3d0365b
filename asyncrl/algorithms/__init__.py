"""The algorithms of reinforcement learning, under their names in papers.

    advantages/    GRPO, Dr. GRPO, RLOO (grpo.py), REINFORCE++ and GDPO (reinforce_pp.py), rewards
                   to go, baselines of least variance
    objectives/    PPO's clip and its dual clip (ppo.py), GSPO, CISPO, TOPR and REINFORCE
                   (reinforce.py)
    selection/     curricula, the size of a group, replay, mixed tasks, the end of a run whose
                   filter leaves nothing
    loss_mean.py   the mean of a step: per token, per rollout, by a constant
    overlong.py    responses that are cut at their budget (DAPO)
    reference_kl.py    estimates of the divergence from a reference or a teacher
    ratios.py, tokens.py, tensors.py    the tensors that they compute with

Pure: no actor, no I/O, no clock. Corrections for off-policy tokens are in `asyncrl.staleness`; the
optimizer step is in `asyncrl.training`.
"""
