"""Coordinator, rollout, reward and trainer: each a nursery around something pure. Actors contain no
math."""

if __name__ != "asyncrl.actors":  # else there would be two copies of each module
    raise ImportError("actors/ is the package asyncrl.actors: import it by that name")
