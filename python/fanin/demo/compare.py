"""From the workers' measurements to the table: pure, so that tests can reach every line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fanin.demo import DemoError

#: Momentum 0.9 repeats each gradient's effect 1 / (1 - 0.9) times.
MOMENTUM_GAIN = 10.0
#: Relative size of the last bit of what ``FANIN_ELEMENT_FORMAT`` puts on the wire; of an int8, a step relative to the
#: largest gradient of its block.
LAST_BIT = {"int32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "int8": 2.0**-6}


@dataclass(frozen=True)
class Run:
    """One training run: what each worker measured, in rank order, and the seconds from first start to last end."""

    backend: str
    ranks: list[dict[str, Any]]
    wall_seconds: float

    @property
    def losses(self) -> list[float]:
        """Training loss of every step, averaged over the workers."""
        return [fmean(step) for step in zip(*(rank["losses"] for rank in self.ranks), strict=True)]

    @property
    def accuracies(self) -> list[float]:
        """Test accuracy after every epoch, 0 to 1."""
        return [epoch["accuracy"] for epoch in self.ranks[0]["epochs"]]

    @property
    def test_losses(self) -> list[float]:
        """Test loss after every epoch."""
        return [epoch["loss"] for epoch in self.ranks[0]["epochs"]]

    @property
    def images_per_second(self) -> float:
        """Mean over the epochs, all workers together."""
        return fmean(epoch["images_per_second"] for epoch in self.ranks[0]["epochs"])

    def mean(self, name: str) -> float:
        """Mean over the workers of one measurement."""
        return fmean(rank[name] for rank in self.ranks)

    def total(self, name: str) -> int:
        """Sum over the workers of one of fanin's counters; 0 for other backends."""
        return int(sum(rank["fanin"]["totals"].get(name, 0) for rank in self.ranks))

    def reasons(self) -> dict[str, int]:
        """Why collectives did not go through the switch, with counts over all workers."""
        found: dict[str, int] = {}
        for rank in self.ranks:
            for group in rank["fanin"]["groups"]:
                for kind, row in group["collectives"].items():
                    for reason, count in row["reasons"].items():
                        label = f"{kind}: {reason}"
                        found[label] = found.get(label, 0) + count
        return found


def read_run(backend: str, folder: Path, worker_count: int, wall_seconds: float) -> Run:
    """Collects the files that the workers left. Raises ``DemoError`` for a missing one."""
    ranks = []
    for rank in range(worker_count):
        path = folder / f"result-{rank}.json"
        if not path.exists():
            raise DemoError(f"worker {rank} of the {backend} run ended without leaving {path}")
        ranks.append(json.loads(path.read_text()))
    return Run(backend, ranks, wall_seconds)


def loss_bounds(step_count: int, worker_count: int, element_format: str = "int32") -> list[float]:
    """The largest relative difference of the loss that rounding explains, for each step.

    Two ways of summing `worker_count` gradients differ by about one last bit per worker: gloo rounds after every
    addition, fanin once per worker to fixed point. Momentum repeats each step's difference, and steps add up.
    First order only: it leaves out that a model can amplify differences, so it holds for smooth models and short runs.
    """
    return [MOMENTUM_GAIN * worker_count * LAST_BIT[element_format] * (step + 1) for step in range(step_count)]


def loss_differences(first: list[float], second: list[float]) -> list[float]:
    """Relative difference of two loss curves, step by step; NaN where one of them is not a number."""
    return [abs(a - b) / max(abs(a), abs(b), 1e-12) if a != b else 0.0 for a, b in zip(first, second, strict=True)]


def within(differences: list[float], bounds: list[float]) -> bool:
    """Whether every difference keeps its bound. NaN keeps none."""
    return all(difference <= bound for difference, bound in zip(differences, bounds, strict=True))


@dataclass(frozen=True)
class Wire:
    """Bytes that one worker sent while it trained (mean over the workers), and how that is known."""

    sent: float
    how: str


def wire(run: Run) -> Wire:
    """Measured at the worker's own device where it has one; else counted by fanin, or computed for gloo's ring."""
    counters = [rank["wire"] for rank in run.ranks]
    if all("tx_bytes" in entry for entry in counters):
        return Wire(fmean(entry["tx_bytes"] for entry in counters), "measured")
    if run.backend == "fanin":
        return Wire(fmean(entry["fanin_sent"] for entry in counters), "counted")
    world_size = len(run.ranks)
    return Wire(2 * (world_size - 1) / world_size * run.mean("gradient_bytes"), "computed")


@dataclass(frozen=True)
class Row:
    """One line of the table: a label and one text per run."""

    label: str
    values: list[str]


def rows(runs: list[Run], bounds: list[float], differences: list[float], link_bps: float | None = None) -> list[Row]:
    """The table. `differences` are those between the loss curves; `link_bps` is the rate of shaped links, bits/s."""

    def each(label: str, text: Any) -> Row:
        return Row(label, [text(run) for run in runs])

    def least(run: Run) -> str:
        return f"{wire(run).sent * 8 / link_bps:.2f} s" if link_bps else ""

    found = [
        each("test accuracy", lambda run: f"{run.accuracies[-1]:.2%}"),
        each("final test loss", lambda run: f"{run.test_losses[-1]:.6f}"),
        each("final training loss", lambda run: f"{run.losses[-1]:.6f}"),
        Row("largest difference of the loss curves", ["", f"{max(differences):.1e}, {verdict(differences, bounds)}"]),
        each("training time", lambda run: f"{run.mean('train_seconds'):.2f} s"),
        each("of that, in communication", _communication),
        each("least that the link allows", least),
        each("images per second", lambda run: f"{run.images_per_second:,.0f}"),
        each("with start and end of the processes", lambda run: f"{run.wall_seconds:.1f} s"),
        each("sent per worker", lambda run: f"{wire(run).sent / 1e6:.1f} MB ({wire(run).how})"),
        each("resends, all workers", lambda run: _of_fanin(run, f"{run.total('resends'):,}")),
        each("collectives through the switch", lambda run: _of_fanin(run, _share(run, "switch"))),
    ]
    if any(run.total("shared") for run in runs):
        found.append(each("collectives in shared memory", lambda run: _of_fanin(run, _share(run, "shared"))))
    return [row for row in found if any(row.values)]


def verdict(differences: list[float], bounds: list[float]) -> str:
    """``within 8.9e-04``, or that it is not."""
    return ("within" if within(differences, bounds) else "NOT within") + f" {bounds[-1]:.1e}"


def _communication(run: Run) -> str:
    seconds = run.mean("communication_seconds")
    return f"{seconds:.2f} s ({seconds / run.mean('train_seconds'):.0%})"


def _of_fanin(run: Run, text: str) -> str:
    return text if run.backend == "fanin" else "-"


def _share(run: Run, path: str) -> str:
    taken, count = run.total(path), sum(run.total(name) for name in ("switch", "shared", "fallback"))
    return f"{taken / count:.1%} ({taken:,} of {count:,})" if count else "none"


def text_table(head: list[str], body: list[Row]) -> str:
    """The table for a terminal, columns aligned."""
    lines = [head, *([row.label, *row.values] for row in body)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([shown[0], "-" * max(map(len, shown)), *shown[1:]])
