"""Coordinator, rollout, reward and trainer: each a nursery around something pure. Actors contain no
math."""
