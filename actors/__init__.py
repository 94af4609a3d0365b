"""Coordinator, rollout, reward and trainer actors: each a nursery around a pure core. Actors
contain no math."""

if __name__ != "asyncrl.actors":  # else there would be two copies of each module
    raise ImportError("actors/ is the package asyncrl.actors: import it by that name")
