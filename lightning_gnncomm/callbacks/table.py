"""Tables of messages: printed at the end of training, or kept up to date while it runs."""

from __future__ import annotations

import time

from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.live import Live
from rich.table import Table

from lightning_gnncomm.callbacks.accounting import CommunicationSummary, StalenessSummary, compression
from lightning_gnncomm.comm.probe import StalenessRecord
from lightning_gnncomm.comm.traffic import TrafficRecord
from lightning_gnncomm.slots import Role

__all__ = ["LiveTable", "build_staleness_table", "build_table", "format_bytes", "print_table"]

_WIDTH = 140  # of what goes into a file or a pipe
_PRINT_SECONDS = 10.0

_DIRECTIONS = {Role.FEATURE: "forward", Role.GRADIENT: "backward", Role.CONSTANT: "constant", Role.NORM: "norm"}


def format_bytes(number: float) -> str:
    """Return bytes for people, in powers of 1000.

    Example:
        >>> format_bytes(36), format_bytes(5_270_400)
        ('36 B', '5.27 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.4g} TB"


def _cells(record: TrafficRecord) -> list[str]:
    return [
        f"{record.exchanges:,}",
        f"{record.rows:,}" if record.rows else "-",
        format_bytes(record.sent_bytes),
        format_bytes(record.dense_bytes),
        f"{compression(record):.1f}x",
        f"{record.wait_seconds:.2f}",
        f"{record.hidden_seconds:.2f}",
    ]


def build_table(summary: CommunicationSummary, num_ranks: int) -> Table:
    """Return a table of what ``num_ranks`` ranks sent: a line per message, then sums."""
    table = Table(
        title=f"Sent by {num_ranks} ranks in {len(summary.epochs)} training epochs",
        caption="Rows and bytes are summed over ranks; exchanges and seconds are those of the rank with most.",
    )
    table.add_column("Slot", no_wrap=True)
    table.add_column("Direction", no_wrap=True)
    for name in ("Exchanges", "Rows", "Bytes", "Without codec", "Ratio", "Wait (s)", "Hidden (s)"):
        table.add_column(name, justify="right", no_wrap=True)
    for slot, record in summary.slots.items():
        table.add_row(str(slot), _DIRECTIONS[slot.role], *_cells(record))
    table.add_section()
    halo = summary.halo
    table.add_row("all halo rows", "", *_cells(halo), style="bold")
    parameters = summary.parameters
    if parameters.exchanges:
        table.add_row("parameter gradients", "all-reduce", *_cells(parameters))
    if summary.evaluation.exchanges:
        table.add_row("validation (exact)", "forward", *_cells(summary.evaluation))
    if parameters.exchanges:
        table.add_section()
        total = TrafficRecord()
        for part in (halo, parameters, summary.evaluation):
            total += part
        table.add_row("total", "", *_cells(total), style="bold")
    return table


def _staleness_cells(record: StalenessRecord) -> list[str]:
    return [
        f"{record.uses:,}",
        f"{record.refreshes:,}",
        f"{record.age / record.uses:.2f}" if record.uses else "-",
        f"{record.oldest}" if record.uses else "-",
        f"{record.relative_error:.3f}" if record.norm else "-",
        f"{record.relative_drift:.3f}" if record.drift_norm else "-",
    ]


def build_staleness_table(summary: StalenessSummary, num_ranks: int) -> Table:
    """Return a table of how late the messages of ``num_ranks`` ranks were: a line per message, then their sum."""
    step = summary.readings[-1].step if summary.readings else 0
    decisions = summary.decisions
    lines = ["Ages are in steps; errors are relative to the rows, drift is what does not average out."]
    if decisions:
        number, last = decisions[-1]
        lines.append(f"{len(decisions)} decisions of the schedule, the last at step {number}: {last}.")
    table = Table(title=f"Rows used by {num_ranks} ranks up to step {step}", caption="\n".join(lines))
    table.add_column("Slot", no_wrap=True)
    table.add_column("Direction", no_wrap=True)
    for name in ("Uses", "Waited for", "Mean age", "Max age", "Error", "Drift"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Guard", no_wrap=True)
    for slot, record in summary.slots.items():
        guard = "synchronous" if slot in summary.synchronous else ""
        table.add_row(str(slot), _DIRECTIONS[slot.role], *_staleness_cells(record), guard)
    table.add_section()
    table.add_row("all halo rows", "", *_staleness_cells(summary.total), style="bold")
    return table


def print_table(table: Table) -> None:
    """Print a table; into a file or a pipe it is never cut to the width of a terminal that is not there."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    console.print(table)


class LiveTable:
    """Shows a table that changes, in a terminal only.

    Without a progress bar the table stays in its place and is drawn anew there. A progress bar owns the cursor: tqdm's knows of
    no one else's lines, and Lightning's bar on rich clears the display that another one has on the same console, each time that
    it starts. Beside a bar the table is therefore printed above it, through the bar, every ten seconds at most.

    Args:
        console: Where to show it; by default standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = Console() if console is None else console
        self._live: Live | None = None
        self._printed = time.monotonic()

    def show(self, table: Table, bar: ProgressBar | None) -> None:
        """Show a table in the place of the last one, or above a progress bar."""
        if not self._console.is_terminal:
            return
        if bar is None or getattr(bar, "is_disabled", False):
            if self._live is None:
                # No thread of its own, and gone at the end, when the last table is printed.
                self._live = Live(console=self._console, auto_refresh=False, transient=True)
                self._live.start()
            self._live.update(table, refresh=True)
        elif time.monotonic() - self._printed >= _PRINT_SECONDS:
            with self._console.capture() as capture:
                self._console.print(table)
            bar.print(capture.get().rstrip("\n"))
            self._printed = time.monotonic()

    def stop(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None
