"""``python -m tests.conformance``: try every class of the installed PyG and print the table."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tests.conformance.support import PATH, document, read, worse
from tests.conformance.table import WRONG, Row, run

COLOURS = {"exact": "green", "refused": "yellow", "not installable": "yellow", "wrong": "bold red"}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("names", nargs="*", help="only classes whose name contains one of these")
    parser.add_argument("--write", action="store_true", help=f"write {PATH.name}")
    parser.add_argument("--no-twins", action="store_true", help="leave out the runs that must fail")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes")
    return parser.parse_args()


def show(rows: Sequence[Row], console: Console) -> None:
    """Print the table."""
    table = Table("Class", "Options", "Result", "Error", "Hidden", "First", "Why", box=None, pad_edge=False)
    for row in rows:
        error = "" if row.error is None else f"{row.error:.0e}"
        why = row.why + (f" [if allowed: {row.if_allowed}]" if row.if_allowed else "")
        cells = (row.name, row.options, row.result, error, row.exchanges, row.first, why)
        table.add_row(*(cell.replace("[", "\\[") for cell in cells), style=COLOURS[row.result])
    console.print(table)


def main() -> int:
    """Run, print, compare with what is recorded; return the exit status."""
    arguments, start = _arguments(), time.monotonic()
    console = Console(width=None if sys.stdout.isatty() else 200)
    rows = run(arguments.names, not arguments.no_twins, arguments.jobs)
    show(rows, console)
    before = read(PATH.read_text()) if PATH.exists() else {}
    complaints = worse(before, rows, everything=not arguments.names)
    complaints += [f"{row.name} ({row.options}) is wrong: {row.why}" for row in rows if row.result == WRONG]
    new = [row for row in rows if row.key not in before]
    counts = ", ".join(f"{number} {result}" for result, number in Counter(row.result for row in rows).items())
    console.print(f"{len(rows)} configurations in {time.monotonic() - start:.0f} s: {counts}; {len(new)} not recorded.")
    if arguments.write and not arguments.names:
        PATH.parent.mkdir(exist_ok=True)
        PATH.write_text(document(rows))
        console.print(f"Written to {PATH}.")
    for complaint in complaints:
        console.print(complaint, style="bold red", markup=False)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
