"""The table by which systems like this one are compared: tokens/s a GPU, seconds of a step, of a
publication and of a pause, memory, and the speed of sends beside a bare broadcast. Pure: of what
checks found; what none found is `–`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Found = Mapping[tuple[str, str], float]
"""Numbers by their check and their name."""
LENGTH = 4096
MODELS = ("0.6B", "1.7B")
COLUMNS = ("model", "tokens/s a GPU", "step s", "memory GiB")
SENDS = (
    ("publication s, alone", "publication", "publication alone"),
    ("publication s, beside steps", "publication", "beside steps"),
    ("step beside a publication, times", "publication", "a step beside, times as long"),
    ("trainer stopped s, checkpoint", "checkpoint", "copy, trainer stopped"),
    ("learning run, accuracy before", "learns", "accuracy before"),
    ("learning run, accuracy after", "learns", "accuracy after"),
    ("learning run s", "learns", "seconds"),
    ("to servers GB/s, host memory", "sends to servers", "from host memory"),
    ("of a bare broadcast", "sends to servers", "from host memory, of a bare broadcast"),
    ("to servers GB/s, device", "sends to servers", "from the device"),
    ("to two ranks of a server GB/s", "sends to servers", "to two ranks"),
    ("hash of 8B s, host memory", "hashes at size", "in host memory: 8B"),
    ("hash of 8B s, device", "hashes at size", "on the device: 8B"),
)


def field_table(found: Found) -> list[str]:
    """Lines of the table.

    >>> field_table({("speed", "0.6B at 4096: speed"): 51234.5})[2]
    '| 0.6B | 51,234 | – | – |'
    """
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    for model in MODELS:
        title = f"{model} at {LENGTH}"
        names = (f"{title}: {what}" for what in ("speed", "step", "memory"))
        lines.append(_line([model, *(_said(found.get(("speed", name))) for name in names)]))
    lines += ["", _line(["weights", "found"]), _line(["---"] * 2)]
    return lines + [_line([title, _said(found.get((check, name)))]) for title, check, name in SENDS]


def _said(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
