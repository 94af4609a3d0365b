"""Settings of the whole test tree: a property has no deadline of its own, because shared machines
are slow at times."""

from hypothesis import settings

settings.register_profile("asyncrl", deadline=None)
settings.load_profile("asyncrl")
