"""live_rollouts.py: a cap on live rollouts, for groups that differ in size."""

from collections.abc import Iterator

from asyncrl.staleness.admission import AdmissionSettings, Contradiction, LiveGroups, LiveWork


class LiveRollouts(LiveGroups):
    """Cap on live rollouts: as many as `LiveGroups` allows of the smallest groups."""

    @classmethod
    def applies(cls, settings: AdmissionSettings) -> bool:
        return settings.sizing == "difficulty" and not settings.step_tokens

    def may_start(self, live: LiveWork) -> int:
        settings = self.settings
        room = self.max_live * settings.group_size - live.rollouts_live
        return min(super().may_start(live), max(0, room // settings.group_size_max))

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        settings = self.settings
        if self.max_live * settings.group_size < settings.batch_groups * settings.group_size_max:
            yield Contradiction(
                ("rollout.group_size_max", "staleness.depth"),
                "a step of hard prompts alone could never be filled: lower group_size_max, or "
                "raise depth",
            )
