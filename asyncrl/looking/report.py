"""`asyncrl report RUN`: a run as one HTML page, which needs nothing beside itself.

What a file of the run does not say is left out, and why is said in its place: a report of a run
that failed early is wanted most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from asyncrl.config import ConfigError
from asyncrl.looking import plots
from asyncrl.looking.html_page import Html, joined, lines, page, tag
from asyncrl.looking.next_changes import next_changes
from asyncrl.looking.plots import PlotSeries, line_plot
from asyncrl.looking.rollout_records import Wanted, decoder, newest, record
from asyncrl.looking.run_figures import (
    RunFigures,
    read_points,
    read_summary,
    run_figures,
)
from asyncrl.looking.seen_rollouts import SeenRollout
from asyncrl.observe.curve import StepPoint
from asyncrl.observe.display import summary_rows
from asyncrl.observe.run_dir import refuse_no_run
from asyncrl.observe.run_status import RunStatus
from asyncrl.observe.summary import Summary
from asyncrl.observe.why import read_status, why

REPORT = "report.html"
"""The file in a run's directory, where no other is named."""
ROLLOUTS = 20
"""Rollouts in a report."""
COLOURS = 8
"""Colours of versions; they begin again after so many."""
STYLE = (
    """
:root{--back:#fff;--text:#1a1a1a;--dim:#666;--line:#ddd;--one:#0b62c4;--two:#c2410c}
@media(prefers-color-scheme:dark){
:root{--back:#15171a;--text:#e6e6e6;--dim:#9a9a9a;--line:#333;--one:#6cb0ff;--two:#ff9e64}}
body{background:var(--back);color:var(--text);font:16px/1.45 system-ui,sans-serif;
margin:0 auto;padding:1rem;max-width:60rem}
h1,h2{line-height:1.2;overflow-wrap:anywhere}h2{margin-top:2rem}
table{border-collapse:collapse;width:100%}
td,th{border-bottom:1px solid var(--line);padding:.25rem .75rem .25rem 0;text-align:left;
vertical-align:top;overflow-wrap:anywhere;font-weight:400}
th{color:var(--dim)}meter{width:6rem}
figure{margin:1rem 0}figcaption{color:var(--dim)}
.l0{color:var(--one)}.l1{color:var(--two)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:0 1rem}
details{border-bottom:1px solid var(--line);padding:.4rem 0}summary{cursor:pointer}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.4rem 0;font-size:.9rem}
.dim{color:var(--dim)}
"""
    + "".join(f".v{n}{{background:hsl({n * 360 // COLOURS} 70% 50%/.25)}}" for n in range(COLOURS))
    + plots.STYLE
)


def write_report(run: Path, path: Path | None, now: float) -> Path:
    """Write the report of a run, whole or not at all, over an earlier one; returns its path. `now`
    is in seconds since 1970. Raises ConfigError."""
    refuse_no_run(run)
    path = run / REPORT if path is None else path
    partial = path.with_name(f"{path.name}.partial")
    text = report(run, now)
    try:
        partial.write_text(text, encoding="utf-8", errors="replace")
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}).") from None
    return path


def report(run: Path, now: float) -> str:
    """The report of a run as HTML. Raises ConfigError for what is no run, or whose settings or
    curve cannot be read."""
    refuse_no_run(run)
    figures, summary = run_figures(run), read_summary(run)
    series, cut = _curves(run)
    changes = [*next_changes(figures, cut)]
    return page(
        f"asyncrl: {run.name}",
        STYLE,
        tag("h1", run.name),
        _or_sentence(lambda: joined(*(tag("p", sentence) for sentence in why(run, now)))),
        tag("h2", "What to change next"),
        *(tag("p", change) for change in changes or ["The numbers of this run ask for nothing."]),
        tag("h2", "What happened"),
        _rows(summary_rows(summary) if summary is not None else _so_far(figures)),
        tag("h2", "Curves"),
        tag("div", *(plot for plot in _plots(series)), class_="plots"),
        tag("h2", "Where time went"),
        _or_sentence(lambda: _idle(figures, read_status(run)[0])),
        tag("h2", "Where tokens went"),
        _ledger(figures),
        tag("h2", "Alarms"),
        _alarms(summary, figures),
        tag("h2", "Newest rollouts"),
        _or_sentence(lambda: _rollouts(run)),
    )


def _or_sentence(make: Callable[[], Html]) -> Html:
    """A part of the report, or the sentence that says why there is none."""
    try:
        return make()
    except ConfigError as error:
        return tag("p", str(error), class_="dim")


def _rows(rows: list[tuple[str, str]]) -> Html:
    return tag("table", *(tag("tr", tag("th", name), tag("td", value)) for name, value in rows))


def _so_far(figures: RunFigures) -> list[tuple[str, str]]:
    """Rows for a run without a summary."""
    of = f" of {figures.steps}" if figures.steps is not None else ""
    best = figures.best
    return [
        ("run", figures.standing),
        ("steps", f"{figures.step}{of} in {figures.seconds:,.0f} s"),
        ("best accuracy", f"{best.accuracy:.3f}, version {best.version}" if best else "–"),
    ]


# ------------------------------------------------------------------------------------------ curves

LINES: dict[str, list[tuple[str, Callable[[StepPoint], float | None]]]] = {
    "reward": [("reward", lambda p: p.reward)],
    "lag": [("mean", lambda p: p.lag_mean), ("largest", lambda p: p.lag_max)],
    "entropy, nats a token": [("entropy", lambda p: p.metrics.get("entropy"))],
    "k3 divergence": [("k3", lambda p: p.metrics.get("k3"))],
    "tokens/s": [
        ("generated", lambda p: p.generated_per_s),
        ("trained", lambda p: p.trained_per_s),
    ],
    "idle share": [("trainer", lambda p: p.idle_trainer), ("rollout", lambda p: p.idle_rollout)],
    "seconds that decoding stood still at a publication": [("pause", lambda p: p.pause_seconds)],
}
"""The lines of each plot, and what a step says for each."""


def _curves(run: Path) -> tuple[dict[str, list[PlotSeries]], float | None]:
    """The lines of each plot, by its title, and the share of the last step's responses that was
    cut."""
    accuracy = PlotSeries("accuracy")
    found = {title: [PlotSeries(name) for name, _ in named] for title, named in LINES.items()}
    cut: float | None = None
    for point in read_points(run):
        if not isinstance(point, StepPoint):
            accuracy.add(point.version, point.accuracy)
            continue
        cut = point.metrics.get("truncated")
        for title, named in LINES.items():
            for series, (_, says) in zip(found[title], named, strict=True):
                series.add(point.version, says(point))
    return {"held-out accuracy": [accuracy]} | found, cut


def _plots(series: Mapping[str, list[PlotSeries]]) -> Iterator[Html]:
    for title, named in series.items():
        yield line_plot(title, "version", named)


# ---------------------------------------------------------------------------------------- accounts


def _idle(figures: RunFigures, status: RunStatus) -> Html:
    """Idle shares of each role by cause, over the last seconds, and of the whole life."""
    rows = [
        _metered(f"{role}, {cause}", share)
        for role, causes in status.idle.items()
        for cause, share in sorted(causes.items(), key=lambda item: -item[1])
    ]
    whole = [
        _metered(f"{name}, since it began", share)
        for name, share in (("trainer", figures.idle_trainer), ("rollout", figures.idle_rollout))
        if share is not None
    ]
    note = f"By cause: of the last {status.window_s:.0f} seconds of what is known of the run."
    return joined(tag("table", *whole, *rows), tag("p", note, class_="dim"))


def _ledger(figures: RunFigures) -> Html:
    """Shares of the generated tokens, by what became of them."""
    tokens = figures.tokens
    parts = [("trained", tokens.trained), *tokens.discarded.items(), ("live", tokens.live)]
    whole = tokens.generated or 1
    rows = [_metered(name, count / whole, f"{count:,}") for name, count in parts]
    return tag("table", *rows, _row("generated", f"{tokens.generated:,}", Html("")))


def _metered(name: str, share: float, more: str = "") -> Html:
    meter = tag("meter", f"{share:.0%}", value=f"{min(1.0, max(0.0, share)):.4f}")
    return _row(name, f"{more} ({share:.1%})" if more else f"{share:.1%}", meter)


def _row(name: str, value: str, meter: Html) -> Html:
    return tag("tr", tag("th", name), tag("td", value), tag("td", meter))


def _alarms(summary: Summary | None, figures: RunFigures) -> Html:
    if summary is None or not summary.alarms:
        return tag("p", f"{figures.alarms} steps raised an alarm." if figures.alarms else "None.")
    return _rows(
        [
            (f"{name}, {alarmed.steps} steps", alarmed.last)
            for name, alarmed in summary.alarms.items()
        ]
    )


# ---------------------------------------------------------------------------------------- rollouts


def _rollouts(run: Path) -> Html:
    """The newest rollouts, the newest first, each version's tokens in a colour."""
    found = [*newest(run, Wanted(last=ROLLOUTS), ROLLOUTS)]
    notes: list[str] = []
    decode = decoder(run, notes.append)
    shown = [_rollout(seen, decode) for seen in reversed(found)]
    said = [*notes, *([] if shown else ["The journal has none."])]
    return joined(*(tag("p", note, class_="dim") for note in said), *shown)


def _rollout(seen: SeenRollout, decode: Callable[[bytes], str]) -> Html:
    one = record(seen, decode)
    facts = [
        f"prompt {one.prompt_index}",
        f"reward {one.reward:g}" if one.reward is not None else one.no_verdict or "no reward",
        f"{one.tokens} tokens",
        f"lag {one.lag}" if one.lag is not None else "",
        one.finish,
        f"{one.status}: {one.reason}" if one.reason else one.status,
    ]
    tokens = [
        tag(
            "span",
            lines(decode(seen.ids[4 * span.start : 4 * span.end])),
            class_=f"v{span.version % COLOURS}",
            title=f"version {span.version}",
        )
        for span in one.spans
    ]
    versions = ", ".join(str(span.version) for span in one.spans[:ROLLOUTS])
    return tag(
        "details",
        tag("summary", f"{one.split} rollout {one.rollout}: {', '.join(filter(None, facts))}"),
        tag("pre", lines(one.prompt), class_="dim"),
        tag("pre", *tokens),
        tag("p", f"versions {versions}" if versions else "nothing sampled", class_="dim"),
    )
