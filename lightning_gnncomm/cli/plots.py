"""The plots of a report, drawn with matplotlib; the only module that imports it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from lightning_gnncomm.callbacks.accounting import PARAMETERS, sum_records
from lightning_gnncomm.callbacks.events import Epoch, Message, Run
from lightning_gnncomm.comm.probe import StalenessRecord
from lightning_gnncomm.slots import Role, Slot

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator
except ImportError as error:
    raise ImportError(
        "gnncomm report draws with matplotlib, which is not installed. Install it with: pip install 'lightning-gnncomm[report]'"
    ) from error

__all__ = ["PLOTS", "Plot", "draw"]

_COLOURS = [f"C{number}" for number in range(10)]
_COMPUTE, _WAIT, _HIDDEN = "#c8d6e5", "#d1495b", "#3a7d44"
_STYLES = {"feature": "-", "gradient": "--", "constant": ":", "norm": "-."}
_STAGES = re.compile(r"^(train|val|valid|validation|test)[_/]")
_MAX_RANKS = 8  # in a plot that has a row for each
_SETTINGS: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.titlesize": "medium",
    "legend.fontsize": "small",
    "legend.frameon": False,
    "svg.hashsalt": "gnncomm",  # the same record gives the same page
}

Named = Sequence[tuple[str, Run]]
"""Runs with the names that the legends give them."""


class Plot(NamedTuple):
    """A plot of a report.

    Args:
        name: Name of its file.
        title: Heading of its section.
        text: What it shows, for a reader who has not read the documentation.
        build: Draws it; ``None`` if the runs hold nothing for it.
        missing: Why there may be nothing.
    """

    name: str
    title: str
    text: str
    build: Callable[[Named], Figure | None]
    missing: str


def draw(plot: Plot, runs: Named, endings: Sequence[str]) -> dict[str, bytes]:
    """Return a plot as the contents of a file for each ending (``"svg"`` or ``"png"``), none if there is nothing to show."""
    with mpl.rc_context(_SETTINGS):
        figure = plot.build(runs)
        return {} if figure is None else {ending: _save(figure, ending) for ending in endings}


def _save(figure: Figure, ending: str) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if ending == "svg" else {"Software": None}
    figure.savefig(buffer, format=ending, dpi=120, metadata=metadata)
    return buffer.getvalue()


# --- values that the module logged ------------------------------------------------------------------------------------


def _metrics(runs: Named) -> Figure | None:
    names = {name for _, run in runs for epoch in run.epochs for name in epoch.metrics}
    # Lightning gives what is logged by step and by epoch three names for the same values.
    names = {n for n in names if not n.endswith("_step") and not (n.endswith("_epoch") and n[:-6] in names)}
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(_STAGES.sub("", name), []).append(name)
    if not groups:
        return None
    order = sorted(groups, key=lambda group: (group != "loss", not group.startswith("acc"), group))
    columns = min(3, len(order))
    rows = -(-len(order) // columns)
    figure = Figure(figsize=(max(4.2 * columns, 6.5), 3.2 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax, group in zip(axes, order, strict=False):
        for number, (label, run) in enumerate(runs):
            for k, name in enumerate(groups[group]):
                points = [(epoch.epoch, epoch.metrics[name]) for epoch in run.epochs if name in epoch.metrics]
                colour = _COLOURS[(number if len(runs) > 1 else k) % 10]
                _line(ax, points, _join(runs, label, name), color=colour, linestyle=["-", "--", ":", "-."][k % 4])
        _finish(ax, group)
        ax.legend()
    for ax in axes[len(order) :]:
        ax.remove()
    return figure


# --- bytes ------------------------------------------------------------------------------------------------------------


def _bytes(runs: Named) -> Figure | None:
    slots = list(dict.fromkeys(slot for _, run in runs for epoch in run.epochs for slot in epoch.traffic))
    slots = [slot for slot in slots if any(_sent(e, slot) for _, run in runs for e in run.epochs)]
    if not slots:
        return None
    figure = Figure(figsize=(12.6, max(3.6, 1.5 + 0.22 * len(slots) * len(runs))), layout="constrained")
    left, right = figure.subplots(1, 2)
    if len(runs) == 1:
        epochs = runs[0][1].epochs
        tops = [[float(_sent(epoch, slot)) for epoch in epochs] for slot in slots]
        # Filled steps, so that one epoch has a width too. The bars on the right are the legend.
        edges = [*(epoch.epoch - 0.5 for epoch in epochs), epochs[-1].epoch + 0.5]
        left.stackplot(edges, [[*top, top[-1]] for top in tops], step="post", colors=_COLOURS)
    else:
        for number, (label, run) in enumerate(runs):
            points = [(epoch.epoch, float(sum(_sent(epoch, slot) for slot in slots))) for epoch in run.epochs]
            _line(left, points, label, color=_COLOURS[number % 10])
        left.legend()
    left.set_ylim(bottom=0)
    left.yaxis.set_major_formatter(EngFormatter("B"))
    _finish(left, "Bytes sent in each epoch, all ranks")
    _bars(right, runs, slots)
    return figure


def _bars(ax: Axes, runs: Named, slots: list[Slot]) -> None:
    height = 0.8 / len(runs)
    for number, (label, run) in enumerate(runs):
        typical = [median(_sent(epoch, slot) for epoch in run.epochs) for slot in slots]
        places = [k + (number + 0.5) * height - 0.4 for k in range(len(slots))]
        colours = [_COLOURS[(number if len(runs) > 1 else k) % 10] for k in range(len(slots))]
        ax.barh(places, typical, height, label=label, color=colours)
    ax.set_yticks(range(len(slots)), [_name(slot) for slot in slots], fontsize="small")
    ax.invert_yaxis()
    ax.xaxis.set_major_formatter(EngFormatter("B"))
    ax.set_title("Bytes of a message in a typical epoch (median)")
    if len(runs) > 1:
        ax.legend()


def _sent(epoch: Epoch, slot: Slot) -> int:
    return epoch.traffic[slot].sent_bytes if slot in epoch.traffic else 0


# --- time -------------------------------------------------------------------------------------------------------------


def _time(runs: Named) -> Figure | None:
    bars = [
        (_join(runs, label, f"rank {rank}"), *_typical_seconds(run, rank))
        for label, run in runs
        for rank in range(min(_num_ranks(run), _MAX_RANKS))
    ]
    figure = Figure(figsize=(12.6, max(3.4, 1.4 + 0.4 * len(bars))), layout="constrained")
    left, right = figure.subplots(1, 2)
    places = range(len(bars))
    compute, wait, hidden = ([bar[k] for bar in bars] for k in (1, 2, 3))
    left.barh([p - 0.1 for p in places], compute, 0.45, color=_COMPUTE, label="compute and all else")
    left.barh([p - 0.1 for p in places], wait, 0.45, left=compute, color=_WAIT, label="wait for halo rows")
    left.barh([p + 0.25 for p in places], hidden, 0.2, color=_HIDDEN, label="transfers meanwhile (hidden)")
    left.set_yticks(places, [bar[0] for bar in bars], fontsize="small")
    left.invert_yaxis()
    left.set_xlabel("seconds")
    left.set_title("A typical epoch (median), by rank" + _of_ranks(runs))
    _legend_below(left)
    for number, (label, run) in enumerate(runs):
        for style, name, values in (
            ("-", "epoch", "seconds"),
            ("--", "wait", "wait_seconds"),
            (":", "hidden", "hidden_seconds"),
        ):
            points = [(epoch.epoch, max(getattr(epoch, values))) for epoch in run.epochs]
            colour = _COLOURS[number % 10] if len(runs) > 1 else {"-": "C0", "--": _WAIT, ":": _HIDDEN}[style]
            _line(right, points, _join(runs, label, name), color=colour, linestyle=style)
    right.set_yscale("symlog", linthresh=1e-4)
    right.set_ylim(bottom=0)
    right.set_ylabel("seconds")
    _finish(right, "Seconds of each epoch, the rank with most")
    _legend_below(right)
    return figure


def _typical_seconds(run: Run, rank: int) -> tuple[float, float, float]:
    wait = median(epoch.wait_seconds[rank] for epoch in run.epochs)
    compute = median(epoch.seconds[rank] - epoch.wait_seconds[rank] for epoch in run.epochs)
    return compute, wait, median(epoch.hidden_seconds[rank] for epoch in run.epochs)


def _timeline(runs: Named) -> Figure | None:
    rows = min(max(_num_ranks(run) for _, run in runs), _MAX_RANKS)
    figure = Figure(figsize=(max(6.3 * len(runs), 12.6), 1.2 + 1.5 * rows), layout="constrained")
    axes = figure.subplots(rows, len(runs), squeeze=False, sharey=True)
    for column, (label, run) in enumerate(runs):
        for rank, ax in enumerate(axes[:, column]):
            if rank < _num_ranks(run):
                _draw_epochs(ax, run, rank)
            else:
                ax.remove()
        axes[0][column].set_title((label if len(runs) > 1 else "Each epoch, by rank") + _of_ranks([(label, run)]))
        axes[min(_num_ranks(run), rows) - 1][column].set_xlabel("epoch")
    axes[0][0].set_ylim(0, max(_usual_top(run) for _, run in runs))
    figure.legend(*_handles(axes), loc="outside lower center", ncols=3)
    return figure


def _draw_epochs(ax: Axes, run: Run, rank: int) -> None:
    numbers = [epoch.epoch for epoch in run.epochs]
    wait = [epoch.wait_seconds[rank] for epoch in run.epochs]
    compute = [epoch.seconds[rank] - epoch.wait_seconds[rank] for epoch in run.epochs]
    hidden = [epoch.hidden_seconds[rank] for epoch in run.epochs]
    ax.bar(numbers, compute, 1.0, color=_COMPUTE, label="compute and all else")
    ax.bar(numbers, wait, 1.0, bottom=compute, color=_WAIT, label="wait for halo rows")
    _line(ax, list(zip(numbers, hidden, strict=True)), "transfers meanwhile (hidden)", color=_HIDDEN)
    ax.set_ylabel(f"rank {rank}\nseconds")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _usual_top(run: Run) -> float:
    """Return a height that most epochs stay below: a slow first one must not flatten all others."""
    longest = sorted(max(epoch.seconds) for epoch in run.epochs)
    return 1.3 * longest[9 * (len(longest) - 1) // 10]


def _handles(axes: Any) -> tuple[Any, Any]:
    handles, labels = axes.flat[0].get_legend_handles_labels()
    return handles, labels


def _num_ranks(run: Run) -> int:
    # After a resume on another number of ranks, those that were there all the time.
    return min(len(epoch.seconds) for epoch in run.epochs)


def _of_ranks(runs: Named) -> str:
    largest = max(_num_ranks(run) for _, run in runs)
    return f", the first {_MAX_RANKS} of {largest}" if largest > _MAX_RANKS else ""


# --- single messages --------------------------------------------------------------------------------------------------


def _messages(runs: Named) -> Figure | None:
    panels = []
    for label, run in runs:
        first, last = run.epochs[0], run.epochs[-1]
        if first.messages:
            panels.append((_join(runs, label, f"epoch {first.epoch}"), first, first.messages))
        if run.last_messages:
            panels.append((_join(runs, label, f"epoch {last.epoch}"), last, run.last_messages))
    if not panels:
        return None
    slots = list(dict.fromkeys(message.slot for _, _, messages in panels for message in messages))
    heights = [1.0 + 0.45 * min(len(epoch.seconds), _MAX_RANKS) for _, epoch, _ in panels]
    figure = Figure(figsize=(12.6, sum(heights) + 0.4 + 0.22 * -(-len(slots) // 3)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for (ax,), (title, epoch, messages) in zip(axes, panels, strict=True):
        _draw_messages(ax, epoch, messages, slots)
        ax.set_title(title)
    handles = [mpl.lines.Line2D([], [], color=_slot_colour(slots, slot), linewidth=4) for slot in slots]
    figure.legend(handles, [_name(slot) for slot in slots], loc="outside lower center", ncols=3)
    return figure


def _draw_messages(ax: Axes, epoch: Epoch, messages: list[Message], slots: list[Slot]) -> None:
    ranks = range(min(len(epoch.seconds), _MAX_RANKS))
    shown = [message for message in messages if message.rank in ranks]
    end = max(message.start + message.seconds for message in shown)
    for rank in ranks:
        ax.barh(rank, min(epoch.seconds[rank], 1.1 * end) * 1e3, 0.5, color=_COMPUTE)
    for message in shown:
        colour, start = _slot_colour(slots, message.slot), message.start * 1e3
        if message.is_wait:
            ax.barh(message.rank, message.seconds * 1e3, 0.5, left=start, color=colour)
        else:
            ax.plot([start, start], [message.rank - 0.4, message.rank - 0.25], color=colour, linewidth=2)
    ax.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
    ax.invert_yaxis()
    ax.set_xlabel("milliseconds of training since the epoch began")
    ax.grid(visible=False, axis="y")


def _slot_colour(slots: list[Slot], slot: Slot) -> str:
    return _COLOURS[slots.index(slot) % 10]


# --- staleness --------------------------------------------------------------------------------------------------------


def _staleness(runs: Named) -> Figure | None:
    slots = list(dict.fromkeys(slot for _, run in runs for epoch in run.epochs for slot in epoch.staleness))
    if not slots:
        return None
    figure = Figure(figsize=(12.6, 7.5), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    for number, (label, run) in enumerate(runs):
        lines = _slot_lines(run, slots) if len(runs) == 1 else [_total_line(run, label, _COLOURS[number % 10])]
        for records, style in lines:
            for ax, points in zip(axes, _curves(records), strict=True):
                _line(ax, points, **style)
    for ax, title in zip(
        axes,
        (
            "Mean age of the rows used, in steps",
            "Error of single steps, relative to the rows",
            "Drift: error that does not average out",
        ),
        strict=True,
    ):
        ax.set_ylim(bottom=0)
        _finish(ax, title)
        for number, (_, run) in enumerate(runs):
            _mark_decisions(ax, run, _COLOURS[number % 10] if len(runs) > 1 else "black")
    for ax in axes[:-1]:
        ax.set_xlabel("")
    figure.legend(*_handles(axes), loc="outside lower center", ncols=3)
    return figure


Records = list[tuple[int, StalenessRecord]]
Points = list[tuple[int, float]]


def _slot_lines(run: Run, slots: list[Slot]) -> list[tuple[Records, dict[str, str]]]:
    lines = []
    for k, slot in enumerate(slots):
        records = [(epoch.epoch, epoch.staleness[slot]) for epoch in run.epochs if slot in epoch.staleness]
        style = {"label": _name(slot), "color": _COLOURS[k % 10], "linestyle": _STYLES[slot.role.value]}
        lines.append((records, style))
    return lines


def _total_line(run: Run, label: str, colour: str) -> tuple[Records, dict[str, str]]:
    epochs = [epoch for epoch in run.epochs if epoch.staleness]
    records = [(epoch.epoch, sum_records(epoch.staleness.values(), StalenessRecord)) for epoch in epochs]
    return records, {"label": label, "color": colour}


def _curves(records: Records) -> tuple[Points, Points, Points]:
    """Return age, error and drift by epoch, each where it was measured."""
    return (
        [(epoch, record.age / record.uses) for epoch, record in records if record.uses],
        [(epoch, record.relative_error) for epoch, record in records if record.norm],
        [(epoch, record.relative_drift) for epoch, record in records if record.drift_norm],
    )


def _mark_decisions(ax: Axes, run: Run, colour: str) -> None:
    marks = {"interval": ":", "refresh": "--", "synchronous": "-"}
    for epoch in run.epochs:
        for what in sorted({decision.what for _, decision in epoch.decisions}):
            ax.axvline(epoch.epoch, color=colour, alpha=0.35, linewidth=1, linestyle=marks.get(what, ":"))


# --- what all of them use ---------------------------------------------------------------------------------------------


def _line(ax: Axes, points: Sequence[tuple[int, float]], label: str, **style: Any) -> None:
    if points:
        numbers, values = zip(*points, strict=True)
        ax.plot(numbers, values, label=label, **_marker(numbers), **style)


def _marker(numbers: Sequence[int]) -> dict[str, Any]:
    return {"marker": "o", "markersize": 3.0} if len(numbers) <= 30 else {}


def _finish(ax: Axes, title: str) -> None:
    ax.set_title(title)
    ax.set_xlabel("epoch")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend_below(ax: Axes) -> None:
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)


def _join(runs: Named, label: str, name: str) -> str:
    return f"{label}: {name}" if len(runs) > 1 else name


def _name(slot: Slot) -> str:
    if slot == PARAMETERS:
        return "parameter gradients"
    return f"{slot}, {'backward' if slot.role is Role.GRADIENT else slot.role.value}"


PLOTS = (
    Plot(
        "metrics",
        "Loss and accuracy",
        "What the module logged, over the whole graph.",
        _metrics,
        "The module logged nothing.",
    ),
    Plot(
        "bytes",
        "Bytes",
        "Bytes of halo rows and of parameter gradients handed to torch.distributed in training, by message: the layer and argument "
        "whose rows travel, forward (feature) or as gradients backward.",
        _bytes,
        "Nothing was sent: the run had one process, or a strategy that exchanges no halos.",
    ),
    Plot(
        "time",
        "Compute, send and wait",
        "Waiting is the exposed part of transfers. The hidden part took place while the rank computed. Compute holds all else, the "
        "all-reduce of parameter gradients among it; validation is left out.",
        _time,
        "",
    ),
    Plot(
        "timeline",
        "Timeline of the ranks",
        "The same for each epoch and rank. A slow epoch, often the first, may reach beyond the plot.",
        _timeline,
        "",
    ),
    Plot(
        "messages",
        "Single messages",
        "The first and the last epoch message by message. A tick above a rank is a message sent; a coloured part is time that the "
        "rank waited for the rows due in its place; what is grey is computation. Statistics of norms are sent and awaited at once.",
        _messages,
        "No message was sent, or the run was stopped early.",
    ),
    Plot(
        "staleness",
        "Staleness and errors",
        "How old the rows in use were, and how far from the true ones. Vertical lines are decisions of the schedule: dotted a new "
        "interval, dashed a refresh, solid a message that waits for good. Errors appear where their window of steps ended.",
        _staleness,
        "No halo rows were exchanged in training.",
    ),
)
"""The plots of a report, in the order of its sections."""
