"""Accounts of time and tokens, the last publications, and the alarms."""

from __future__ import annotations

from asyncrl.explain.rows import figure_rows, summary_rows
from asyncrl.explain.views.html_page import Html, joined, meter, table, tag
from asyncrl.explain.views.seen_run import SeenRun, clock_time
from asyncrl.words import count, duration, share


def totals(seen: SeenRun) -> Html:
    """The figures of the whole run. Raises ConfigError."""
    summary = seen.files.summary
    if summary is not None:
        return table(summary_rows(summary))
    return table(figure_rows(seen.figures, losses=seen.files.supervised))


def time(seen: SeenRun) -> Html:
    """Idle shares of each role by cause, over the last seconds, and of the whole life. Raises
    ConfigError."""
    figures = seen.figures
    rows = [
        (f"{name} idle, since its start", part)
        for name, part in (("trainer", figures.idle_trainer), ("engines", figures.idle_rollout))
        if part is not None
    ]
    status = seen.said_status
    rows += [
        (f"{role} waits for {cause}", part)
        for role, causes in status.idle.items()
        for cause, part in sorted(causes.items(), key=lambda item: -item[1])
    ]
    note = f"By cause: over the last {duration(status.window_s)}."
    shown = table(((name, share(part), meter(part)) for name, part in rows))
    return joined(shown, tag("p", note, class_="dim"))


def tokens(seen: SeenRun) -> Html:
    """Shares of the generated tokens, by what became of them. Raises ConfigError."""
    found = seen.figures.tokens
    parts = [("trained", found.trained), *found.discarded.items(), ("live", found.live)]
    whole = found.generated or 1
    rows = [
        (name, f"{count(part)} ({share(part / whole)})", meter(part / whole))
        for name, part in parts
    ]
    return table([*rows, ("generated", count(found.generated), "")])


def publications(seen: SeenRun) -> Html:
    """The last versions: when their steps were made, and for how long decoding stood still at the
    publication before. The one under way is in the flow. Raises ConfigError."""
    rows = [
        (
            f"{point.version}",
            clock_time(point.at),
            duration(point.step_seconds),
            count(point.trained),
            duration(point.pause_seconds),
        )
        for point in reversed(seen.curves.last[-10:])
    ]
    names = ("version", "made at (UTC)", "optimizer took", "tokens", "pause before")
    return table(rows, names) if rows else tag("p", "None but the first yet.", class_="dim")


def alarms(seen: SeenRun) -> Html:
    """The alarms of the whole run, or the last steps that raised one. Raises ConfigError."""
    if (summary := seen.files.summary) is not None and summary.alarms:
        return table(
            (f"{name}, {alarmed.steps} steps", alarmed.last)
            for name, alarmed in summary.alarms.items()
        )
    if not (raised := seen.figures.alarms):
        return tag("p", "None.", class_="dim")
    steps = (
        (f"version {point.version}", ", ".join(point.alarms))
        for point in reversed(seen.curves.alarmed[-10:])
    )
    return joined(tag("p", f"{count(raised)} steps raised an alarm."), table(steps))
