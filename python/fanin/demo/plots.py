"""Plots as inline SVG, coloured by the page's CSS variables so that they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 34, 44
_BAR_HEIGHT, _BAR_PITCH, _BAR_LEFT, _BAR_TOP = 26, 38, 62, 4

_LEGEND_Y = 12


@dataclass(frozen=True)
class Series:
    """One curve. `style` is a CSS class of the page: ``gloo``, ``fanin`` or ``bound``."""

    name: str
    style: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True)
class Part:
    """One piece of a bar."""

    value: float
    style: str
    label: str


@dataclass(frozen=True)
class Scale:
    """Maps values to pixels, linearly or by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            # Zero has no logarithm; it sits on the axis.
            value, low, high = math.log10(max(value, low)), math.log10(low), math.log10(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten) from `low` to `high`."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * min((factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999), default=10)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from `low` to `high`, thinned to at most six."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    stride = max(1, math.ceil((last - first + 1) / 6))
    return [10.0**power for power in range(first, last + 1, stride)]


def line_chart(
    title: str,
    series: Sequence[Series],
    x_label: str,
    *,
    logarithmic: bool = False,
    dots: bool = False,
    text: Callable[[float], str] = "{:g}".format,
) -> str:
    """Curves over a common x axis, with a legend. Values that are not finite are left out.

    `dots` marks each point; `text` writes the labels of the y axis.
    """
    finite = [value for curve in series for value in curve.ys if math.isfinite(value)]
    xs = [value for curve in series for value in curve.xs]
    if not finite or not xs:
        return _svg(title, HEIGHT, ['<text x="20" y="40">no finite values</text>'])
    low, high = _range(finite, logarithmic)
    x_scale = Scale(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, _LEFT, WIDTH - _RIGHT)
    y_scale = Scale(low, high, HEIGHT - _BOTTOM, _TOP, logarithmic)
    body = _y_axis(y_scale, decades(low, high) if logarithmic else ticks(low, high), text)
    body += _x_axis(x_scale, x_label, whole=all(float(value).is_integer() for value in xs))
    body += [_curve(curve, x_scale, y_scale, dots) for curve in series]
    body += _legend(series)
    return _svg(title, HEIGHT, body)


def _range(values: Sequence[float], logarithmic: bool) -> tuple[float, float]:
    if logarithmic:
        positive = [value for value in values if value > 0] or [1.0]
        low, high = 10.0 ** math.floor(math.log10(min(positive))), 10.0 ** math.ceil(math.log10(max(positive)))
        return (low, high) if high > low else (low, 10 * low)
    low, high = min(values), max(values)
    margin = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    # Losses and times start at zero; for shares near 1 that would flatten the curve.
    return (0.0 if 0 <= low < 0.5 * high else low - margin), high + margin


def _y_axis(scale: Scale, values: Sequence[float], text: Callable[[float], str]) -> list[str]:
    body = []
    for value in values:
        y = scale(value)
        body.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(
            f'<text class="tick" text-anchor="end" x="{_LEFT - 8}" y="{y + 4:.1f}">{escape(text(value))}</text>'
        )
    return body


def _x_axis(scale: Scale, label: str, whole: bool) -> list[str]:
    y = HEIGHT - _BOTTOM
    body = [f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>']
    for value in ticks(scale.low, scale.high, 6):
        if whole and not float(value).is_integer():
            continue
        body.append(f'<text class="tick" text-anchor="middle" x="{scale(value):.1f}" y="{y + 18}">{value:g}</text>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    body.append(f'<text class="tick" text-anchor="middle" x="{middle:.0f}" y="{HEIGHT - 8}">{escape(label)}</text>')
    return body


def _curve(curve: Series, x_scale: Scale, y_scale: Scale, dots: bool) -> str:
    points = [(x_scale(x), y_scale(y)) for x, y in zip(curve.xs, curve.ys, strict=True) if math.isfinite(y)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    marks = [f'<circle class="{curve.style} dot" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in points] if dots else []
    return f'<polyline class="{curve.style} curve" points="{path}"/>' + "".join(marks)


def _legend(series: Sequence[Series]) -> list[str]:
    body, x = [], WIDTH - _RIGHT - sum(42 + 7 * len(curve.name) for curve in series)
    for curve in series:
        body.append(f'<line class="{curve.style} curve" x1="{x}" x2="{x + 22}" y1="{_LEGEND_Y}" y2="{_LEGEND_Y}"/>')
        body.append(f'<text class="legend" x="{x + 27}" y="{_LEGEND_Y + 4}">{escape(curve.name)}</text>')
        x += 42 + 7 * len(curve.name)
    return body


def bar_chart(title: str, bars: Sequence[tuple[str, Sequence[Part]]]) -> str:
    """One horizontal bar per entry, made of parts laid end to end, each with its own label inside or after it."""
    longest = max((sum(part.value for part in parts) for _, parts in bars), default=0.0) or 1.0
    bottom = _BAR_TOP + _BAR_PITCH * len(bars)
    scale = Scale(0.0, longest, _BAR_LEFT, WIDTH - _RIGHT)
    body = []
    for value in ticks(0.0, longest):
        x = scale(value)
        body.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_BAR_TOP}" y2="{bottom}"/>')
        body.append(f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{bottom + 18}">{value:g}</text>')
    for index, (name, parts) in enumerate(bars):
        body += _bar(name, parts, _BAR_TOP + index * _BAR_PITCH + (_BAR_PITCH - _BAR_HEIGHT) // 2, scale)
    return _svg(title, bottom + 28, body)


def _bar(name: str, parts: Sequence[Part], y: int, scale: Scale) -> list[str]:
    body = [f'<text class="legend" text-anchor="end" x="{_BAR_LEFT - 8}" y="{y + 18}">{escape(name)}</text>']
    reached = 0.0
    for part in parts:
        x, end = scale(reached), scale(reached + part.value)
        reached += part.value
        body.append(
            f'<rect class="{part.style} bar" x="{x:.1f}" y="{y}" width="{max(end - x, 0):.1f}" height="{_BAR_HEIGHT}">'
            f"<title>{escape(part.label)}</title></rect>"
        )
        # A label that does not fit stays available as the tooltip.
        if end - x > 7 * len(part.label) + 12:
            body.append(f'<text class="inbar" x="{x + 8:.1f}" y="{y + 18}">{escape(part.label)}</text>')
    return body


def _svg(title: str, height: int, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">{"".join(body)}</svg>'
    )
