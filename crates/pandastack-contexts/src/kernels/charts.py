"""Charts of matplotlib as data, in the form that E2B's clients read. A part of the Python kernel.

A figure with several axes is a `superchart` of them. What is no line, scatter, bar, pie or box plot has the
type `unknown` and no elements.
"""

import datetime
import math
import re
import sys

# Points and elements of one figure. A figure with more is only a picture.
CHART_POINTS_MAX = 20_000
UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")


def chart_of(figure):
    """The figure as data, or `None` if nothing is drawn, or too much."""
    try:
        if sum(map(size_of, figure.get_axes())) > CHART_POINTS_MAX:
            return None
        charts = [chart_of_axes(axes) for axes in figure.get_axes() if axes.has_data()]
        if len(charts) < 2:
            return charts[0] if charts else None
        return {"type": "superchart", "title": figure.get_suptitle() or None, "elements": charts}
    except Exception:
        # The picture is still good.
        return None


def size_of(axes):
    points = sum(len(line.get_xdata(orig=True)) for line in axes.lines)
    return points + sum(len(one.get_offsets()) for one in axes.collections) + len(axes.patches)


def chart_of_axes(axes):
    kind = kind_of(axes)
    chart = {"type": kind, "title": axes.get_title() or None}
    if kind in ("line", "scatter", "bar", "box_and_whisker"):
        for name, label in (("x", axes.get_xlabel()), ("y", axes.get_ylabel())):
            unit = UNIT.search(label)
            chart[f"{name}_label"] = label or None
            chart[f"{name}_unit"] = (unit.group(1) or unit.group(2)) if unit else None
    if kind in ("line", "scatter"):
        for name, axis, scale in (("x", axes.xaxis, axes.get_xscale()), ("y", axes.yaxis, axes.get_yscale())):
            chart.update(ticks_of(name, axis, scale))
    elements, is_turned = ELEMENTS.get(kind, lambda _: ([], False))(axes)
    if is_turned:
        # E2B's charts name the axis of values `y`, whichever way bars and boxes lie.
        for what in ("label", "unit"):
            chart[f"x_{what}"], chart[f"y_{what}"] = chart[f"y_{what}"], chart[f"x_{what}"]
    return {**chart, "elements": elements}


def kind_of(axes):
    """What all artists of the axes have in common."""
    artists = drawn(axes)
    names = {type(one).__name__ for one in artists}
    if names <= {"Line2D"}:
        return "line"
    if "PathPatch" in names and names <= {"PathPatch", "Line2D"}:
        return "box_and_whisker"
    names = {type(one).__name__ for one in artists if not is_grid(one)}
    kinds = {"PathCollection": "scatter", "Wedge": "pie", "Rectangle": "bar"}
    return kinds.get(names.pop(), "unknown") if len(names) == 1 else "unknown"


def drawn(axes):
    return [*axes.lines, *axes.collections, *axes.patches, *axes.images, *axes.tables]


def is_grid(artist):
    """Whether it is a line across the axes, as `axhline` draws it."""
    if type(artist).__name__ != "Line2D":
        return False
    x, y = list(artist.get_xdata(orig=True)), list(artist.get_ydata(orig=True))
    return len(x) == 2 == len(y) and (x[0] == x[1] or y[0] == y[1])


def plain(value):
    """A coordinate as JSON has it."""
    # What is left out of a masked array would be 0.
    if type(value).__name__ == "MaskedConstant":
        return None
    if hasattr(value, "dtype") and value.dtype.kind == "M":
        return str(value.astype("datetime64[s]"))
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (int, float, str)) else str(value)


def points(pairs):
    return [[plain(x), plain(y)] for x, y in pairs]


def ticks_of(name, axis, scale):
    labels = [label.get_text() for label in axis.get_ticklabels()]
    ticks = [plain(tick) for tick in axis.get_ticklocs()]
    converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
    if "Date" in type(converter).__name__:
        dates = sys.modules["matplotlib.dates"]
        ticks, scale = [dates.num2date(tick).isoformat() for tick in ticks], "datetime"
    elif scale == "linear" and ticks:
        numbered = zip(range(len(ticks)), ticks, labels)
        if all(tick == number and str(number) != label for number, tick, label in numbered):
            scale = "categorical"
    return {f"{name}_ticks": ticks, f"{name}_tick_labels": labels, f"{name}_scale": scale}


def lines(axes):
    found = []
    for line in axes.get_lines():
        if not is_grid(line) or len(axes.get_lines()) == 1:
            label = str(line.get_label())
            label = f"Line {label[6:]}" if label.startswith("_child") else label
            data = points(zip(line.get_xdata(orig=True), line.get_ydata(orig=True)))
            found.append({"label": label, "points": data})
    return found, False


def scatters(axes):
    found = axes.collections
    return [{"label": str(one.get_label()), "points": points(one.get_offsets())} for one in found], False


def names_of(axis):
    """What stands at the ticks of an axis of categories. Ticks of numbers need not be where bars are."""
    has_names = type(axis.get_major_locator()).__name__ in ("FixedLocator", "StrCategoryLocator")
    return [label.get_text() for label in axis.get_ticklabels()] if has_names else []


def bars(axes):
    found, is_turned = [], False
    for container in axes.containers:
        group = str(container.get_label())
        group = f"Group {group[10:]}" if group.startswith("_container") else group
        is_turned = getattr(container, "orientation", "vertical") == "horizontal"
        labels = names_of(axes.yaxis if is_turned else axes.xaxis)
        for number, bar in enumerate(container):
            center = bar.get_y() + bar.get_height() / 2 if is_turned else bar.get_x() + bar.get_width() / 2
            label = labels[number] if len(labels) == len(container) else f"{center:g}"
            value = bar.get_width() if is_turned else bar.get_height()
            found.append({"label": label, "group": group, "value": plain(value)})
    return found, is_turned


def pies(axes):
    found = []
    for wedge in axes.patches:
        angle = abs(round(wedge.theta2 - wedge.theta1, 6))
        found.append({"label": str(wedge.get_label()), "angle": angle, "radius": plain(wedge.r)})
    return found, False


def boxes(axes):
    """Boxes with the lines that belong to them: by position across, and by value along."""
    corners = [box.get_path().vertices for box in axes.patches]
    wide = [(box[:, 0].min(), box[:, 0].max(), box[:, 1].min(), box[:, 1].max()) for box in corners]
    # Boxes stand on the ticks.
    ticks = {round(tick, 6) for tick in axes.get_xticks()}
    is_turned = not all(round((left + right) / 2, 6) in ticks for left, right, _, _ in wide)
    if is_turned:
        wide = [(bottom, top, left, right) for left, right, bottom, top in wide]
    labels = (axes.get_yticklabels if is_turned else axes.get_xticklabels)()
    found = []
    for label, (left, right, first, third) in zip(labels, wide):
        box = {"label": label.get_text(), "min": first, "first_quartile": first, "median": first,
               "third_quartile": third, "max": third, "outliers": []}
        for line in axes.lines:
            across, along = list(line.get_xdata(orig=True)), list(line.get_ydata(orig=True))
            across, along = (along, across) if is_turned else (across, along)
            if not len(across) or min(across) < left or max(across) > right:
                continue
            if line.get_linestyle() in ("None", "none", " ", ""):
                box["outliers"] += along
            elif len(along) == 2 and along[0] == along[1] and min(across) == left:
                box["median"] = along[0]
            elif len(along) == 2:
                box["min"], box["max"] = min(box["min"], *along), max(box["max"], *along)
        box["outliers"] = [plain(value) for value in box["outliers"]]
        numbers = {name: plain(value) for name, value in box.items() if not isinstance(value, (str, list))}
        found.append({**box, **numbers})
    return found, is_turned


ELEMENTS = {"line": lines, "scatter": scatters, "bar": bars, "pie": pies, "box_and_whisker": boxes}
