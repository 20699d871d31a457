"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from fanin.demo import compare, plots
from fanin.demo.compare import Row, Run
from fanin.demo.plots import Part, Series

_STYLE = (Path(__file__).parent / "report.css").read_text


@dataclass(frozen=True)
class Setting:
    """How the runs were made: texts for the report."""

    command: str
    summary: str
    busy: str | None
    """A warning about the machine."""
    facts: list[tuple[str, str]]


def write(
    path: Path, setting: Setting, runs: Sequence[Run], table: list[Row], bounds: list[float], differences: list[float]
) -> None:
    """Writes the page to `path`; its folder must exist."""
    parts = [
        f"<h1>The same training over {' and '.join(run.backend for run in runs)}</h1>",
        f'<p class="lead">{escape(setting.summary)}</p>',
        f'<p class="note">Note: {escape(setting.busy)}</p>' if setting.busy else "",
        _headline(runs, bounds, differences),
        _table(runs, table),
        '<div class="plots">',
        *_figures(runs, bounds, differences),
        "</div>",
        _reasons(runs[-1]),
        _method(runs, bounds),
        "<h2>Machine</h2>",
        _facts(setting.facts),
        "<h2>Once more</h2>",
        f"<pre>{escape(setting.command)}</pre>",
    ]
    style = _STYLE(encoding="utf-8")
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>fanin: demonstration</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{style}</style></head>'
    )
    path.write_text(f"{head}<body><main>{''.join(parts)}</main></body></html>\n", encoding="utf-8")


def _headline(runs: Sequence[Run], bounds: list[float], differences: list[float]) -> str:
    first, second = runs
    ratio = first.mean("train_seconds") / second.mean("train_seconds")
    talk = first.mean("communication_seconds") / second.mean("communication_seconds")
    sent = compare.wire(first).sent / compare.wire(second).sent
    cards = [
        (f"{ratio:.2f}×", f"training speed of {second.backend}, relative to {first.backend}"),
        (f"{talk:.2f}×", "speed of communication alone"),
        (f"{sent:.2f}×", f"bytes that a worker sends over {first.backend}, relative to {second.backend}"),
        (f"{max(differences):.0e}", f"largest difference of the loss; {compare.verdict(differences, bounds)}"),
    ]
    shown = "".join(f"<div><strong>{value}</strong><span>{escape(text)}</span></div>" for value, text in cards)
    return f'<div class="cards">{shown}</div>'


def _table(runs: Sequence[Run], table: list[Row]) -> str:
    head = "".join(f'<th><i class="{run.backend}"></i>{escape(run.backend)}</th>' for run in runs)
    body = "".join(
        f"<tr><th>{escape(row.label)}</th>{''.join(f'<td>{escape(value)}</td>' for value in row.values)}</tr>"
        for row in table
    )
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"


def _figures(runs: Sequence[Run], bounds: list[float], differences: list[float]) -> list[str]:
    steps = range(1, len(bounds) + 1)
    loss = [Series(run.backend, run.backend, steps, run.losses) for run in runs]
    accuracy = [Series(run.backend, run.backend, range(1, len(run.accuracies) + 1), run.accuracies) for run in runs]
    gap = [Series("bound", "bound", steps, bounds), Series("difference", "fanin", steps, differences)]
    return [
        _figure("Training loss", "Mean of the workers, per step. The curves lie on each other.", loss, "step"),
        _figure(
            "Difference of the loss",
            "Relative, per step, with the bound explained below; zero lies on the axis.",
            gap,
            "step",
            log=True,
        ),
        _figure("Test accuracy", "After each epoch.", accuracy, "epoch", dots=True),
        "<figure>"
        + _bars("Training time", "seconds", [(run.backend, _time_parts(run)) for run in runs])
        + _bars("Sent per worker while training", "MB", [(run.backend, [_wire_part(run)]) for run in runs])
        + "</figure>",
    ]


def _figure(title: str, note: str, series: list[Series], x_label: str, *, log: bool = False, dots: bool = False) -> str:
    text = (lambda value: f"{value:.0%}") if dots else (lambda value: f"{value:.0e}") if log else "{:g}".format
    chart = plots.line_chart(title, series, x_label, logarithmic=log, dots=dots, text=text)
    return f"<figure><h3>{escape(title)}</h3><p>{escape(note)}</p>{chart}</figure>"


def _bars(title: str, unit: str, bars: list[tuple[str, list[Part]]]) -> str:
    return f"<h3>{escape(title)}</h3><p>Mean of the workers, {unit}.</p>{plots.bar_chart(title, bars)}"


def _time_parts(run: Run) -> list[Part]:
    talk = run.mean("communication_seconds")
    rest = max(0.0, run.mean("train_seconds") - talk)
    return [
        Part(talk, run.backend, f"communication {talk:.1f} s"),
        Part(rest, "rest", f"rest {rest:.1f} s"),
    ]


def _wire_part(run: Run) -> Part:
    found = compare.wire(run)
    return Part(found.sent / 1e6, run.backend, f"{found.sent / 1e6:.1f} MB, {found.how}")


def _reasons(run: Run) -> str:
    found = run.reasons()
    if not found:
        return "<h2>What fell back to gloo</h2><p>Nothing.</p>"
    items = "".join(f"<li>{count} × {escape(reason)}</li>" for reason, count in sorted(found.items()))
    return (
        "<h2>What fell back to gloo</h2><p>Counted over all workers; <code>fanin.explain()</code> says the same in any "
        f"script.</p><ul>{items}</ul>"
    )


def _method(runs: Sequence[Run], bounds: list[float]) -> str:
    workers = len(runs[0].ranks)
    notes = [
        "Both runs have the same script, seeds, images and order of images; only the backend's name differs.",
        "Time in communication runs, on each worker, from the moment when DDP has a bucket of gradients ready to the "
        "moment when the sum is there; overlapping spans count once. It holds the wait for slower workers, and part of "
        "it is hidden behind the backward pass.",
        f"The bound of the loss's difference is 10 × {workers} workers × steps × one last bit of what is on the wire "
        f"({bounds[-1]:.1e} at the end). Sums in floating point depend on their order, and fanin rounds each worker's "
        "gradient once to fixed point, so each step may differ by about one last bit per worker; momentum 0.9 repeats "
        "a gradient's effect 10 times; steps add up. It is a first-order estimate, not a theorem: a model can amplify "
        "differences, and models with kinks (ReLU) do so even between two orders of summation in gloo.",
        "Where links are slow, speed beyond the ratio of the bytes sent is processor time saved, not bandwidth. Over "
        "loopback all of it is processor time, and the switch runs on the same cores as the workers.",
        *sorted({_wire_note(run) for run in runs}),
    ]
    return "<h2>How it was measured</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _wire_note(run: Run) -> str:
    return {
        "measured": "Bytes are those that left the worker's network device, with all headers.",
        "counted": "Bytes of fanin are counted by the workers: datagrams with fanin's header, without those of UDP and "
        "IP.",
        "computed": "Bytes of gloo are computed: a ring sends 2(n − 1)/n times the gradients; loopback has no counter "
        "per worker.",
    }[compare.wire(run).how]


def _facts(facts: list[tuple[str, str]]) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    return f"<dl>{items}</dl>"
