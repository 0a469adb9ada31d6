"""Pictures as inline SVG: stacked bars over time, bars by name, curves over a share of time.

Elements of a tree, so that whoever writes them out escapes every text. Coordinates are whole.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple
from xml.etree.ElementTree import Element, SubElement

from ledger.operations.words import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.operations.measure import Part

__all__ = ["COLOURS", "Bars", "Chart", "Curves", "Stacked", "draw"]

#: Told apart by people who see colours differently, too; the first is what was used.
COLOURS = (
    "#0072b2", "#bcd6e8", "#e69f00", "#d55e00", "#cc79a7", "#8c6d31", "#f0e442", "#7f0000",
    "#56b4e9", "#009e73", "#999999", "#5e4fa2", "#444444",
)  # fmt: skip

#: For thin lines.
_STRONG = (COLOURS[0], COLOURS[3], COLOURS[9], COLOURS[11])

_WIDTH, _HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 8, 10, 26
_ROW, _NAMES = 24, 170


class Stacked(NamedTuple):
    """A bar for each label, made of parts on top of each other."""

    title: str
    labels: tuple[str, ...]
    parts: tuple[Part, ...]
    unit: str


class Bars(NamedTuple):
    """A bar for each name."""

    title: str
    pairs: tuple[tuple[str, int], ...]
    unit: str


class Curves(NamedTuple):
    """Lines over a share of time, from 0 to 100 %: each has a value for every equal step."""

    title: str
    parts: tuple[Part, ...]
    unit: str


Chart = Stacked | Bars | Curves


def draw(chart: Chart) -> Element:
    """Return the picture as a ``figure``: caption, drawing, and what the colours mean."""
    figure = Element("figure")
    SubElement(figure, "figcaption").text = chart.title
    if isinstance(chart, Bars):
        figure.append(_bars(chart))
        return figure
    figure.append(_stacked(chart) if isinstance(chart, Stacked) else _curves(chart))
    legend = SubElement(figure, "ul", {"class": "legend"})
    for part, colour in _coloured(chart):
        if any(part.amounts):
            item = SubElement(legend, "li")
            key = SubElement(item, "span", {"style": f"background:{colour}"})
            key.tail = part.name
    return figure


def _coloured(chart: Stacked | Curves) -> Iterator[tuple[Part, str]]:
    """Yield the parts, each with its colour; lines have only strong ones."""
    colours = COLOURS if isinstance(chart, Stacked) else _STRONG
    return zip(chart.parts, cycle(colours), strict=False)


def _svg(title: str, height: int) -> Element:
    svg = Element("svg", {"viewBox": f"0 0 {_WIDTH} {height}", "role": "img"})
    SubElement(svg, "title").text = title
    return svg


def _text(svg: Element, x: int, y: int, text: str, anchor: str = "start") -> None:
    attributes = {"x": str(x), "y": str(y), "text-anchor": anchor}
    SubElement(svg, "text", attributes).text = text


def _rect(svg: Element, x: int, y: int, size: tuple[int, int], look: tuple[str, str]) -> None:
    """Draw a bar of a colour that says what it is when it is pointed at."""
    colour, says = look
    one = SubElement(
        svg, "rect",
        {"x": str(x), "y": str(y), "width": str(size[0]), "height": str(size[1]), "fill": colour},
    )  # fmt: skip
    SubElement(one, "title").text = says


def _axes(svg: Element, most: int, unit: str) -> None:
    base = _HEIGHT - _BOTTOM
    for value in (0, most // 2, most):
        y = base - _scaled(value, most)
        SubElement(
            svg, "line",
            {"x1": str(_LEFT), "x2": str(_WIDTH - _RIGHT), "y1": str(y), "y2": str(y)},
        )  # fmt: skip
        _text(svg, _LEFT - 6, y + 4, amount_text(value, unit), "end")


def _scaled(value: int, most: int) -> int:
    return max(value, 0) * (_HEIGHT - _TOP - _BOTTOM) // max(most, 1)


def _stacked(chart: Stacked) -> Element:
    svg = _svg(chart.title, _HEIGHT)
    count = len(chart.labels)
    sums = [sum(part.amounts[at] for part in chart.parts) for at in range(count)]
    most = max(sums, default=0)
    _axes(svg, most, chart.unit)
    width = _WIDTH - _LEFT - _RIGHT
    for at in range(count):
        x, after = (_LEFT + width * one // count for one in (at, at + 1))
        below = 0
        for part, colour in _coloured(chart):
            amount = part.amounts[at]
            low, high = _scaled(below, most), _scaled(below + amount, most)
            below += amount
            if high > low:
                says = f"{chart.labels[at]}: {part.name} {amount_text(amount, chart.unit)}"
                size = (max(after - x - 1, 1), high - low)
                _rect(svg, x, _HEIGHT - _BOTTOM - high, size, (colour, says))
    if count:
        _text(svg, _LEFT, _HEIGHT - 8, chart.labels[0])
        if count > 1:
            _text(svg, _WIDTH - _RIGHT, _HEIGHT - 8, chart.labels[-1], "end")
    return svg


def _bars(chart: Bars) -> Element:
    svg = _svg(chart.title, _ROW * len(chart.pairs) + 6)
    most = max((amount for _, amount in chart.pairs), default=0)
    room = _WIDTH - _NAMES - 130
    for at, (name, amount) in enumerate(chart.pairs):
        y = at * _ROW + 4
        size = (max(amount, 0) * room // max(most, 1), _ROW - 8)
        _rect(svg, _NAMES, y, size, (COLOURS[3], f"{name} {amount_text(amount, chart.unit)}"))
        _text(svg, _NAMES - 6, y + 12, name, "end")
        _text(svg, _NAMES + size[0] + 6, y + 12, amount_text(amount, chart.unit))
    return svg


def _curves(chart: Curves) -> Element:
    svg = _svg(chart.title, _HEIGHT)
    most = max((max(part.amounts, default=0) for part in chart.parts), default=0)
    _axes(svg, most, chart.unit)
    width = _WIDTH - _LEFT - _RIGHT
    for part, colour in _coloured(chart):
        last = max(len(part.amounts) - 1, 1)
        points = " ".join(
            f"{_LEFT + width * at // last},{_HEIGHT - _BOTTOM - _scaled(amount, most)}"
            for at, amount in enumerate(part.amounts)
        )
        SubElement(svg, "polyline", {"points": points, "stroke": colour})
    _text(svg, _LEFT, _HEIGHT - 8, "0 % of the time")
    _text(svg, _WIDTH - _RIGHT, _HEIGHT - 8, "100 %", "end")
    return svg
