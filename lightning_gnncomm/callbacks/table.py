"""The table of messages that is printed at the end of training."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from lightning_gnncomm.callbacks.accounting import CommunicationSummary, compression
from lightning_gnncomm.comm.traffic import TrafficRecord
from lightning_gnncomm.slots import Role

__all__ = ["build_table", "format_bytes", "print_table"]

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
    ]


def build_table(summary: CommunicationSummary, num_ranks: int) -> Table:
    """Return a table of what ``num_ranks`` ranks sent: a line per message, then sums."""
    table = Table(
        title=f"Sent by {num_ranks} ranks in {len(summary.epochs)} training epochs",
        caption="Rows and bytes are summed over ranks; exchanges and waiting are those of the rank with most.",
    )
    table.add_column("Slot", no_wrap=True)
    table.add_column("Direction", no_wrap=True)
    for name in ("Exchanges", "Rows", "Bytes", "Without codec", "Ratio", "Wait (s)"):
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


def print_table(summary: CommunicationSummary, num_ranks: int) -> None:
    """Print the table; into a file or a pipe it is never cut to the width of a terminal that is not there."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    console.print(build_table(summary, num_ranks))
