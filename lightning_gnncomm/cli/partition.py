"""``gnncomm partition``: cut a graph once, in one process, before training."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any, Literal

from jsonargparse import ArgumentParser, DefaultHelpFormatter
from jsonargparse.typing import NonNegativeInt, PositiveInt
from rich.console import Console

from lightning_gnncomm.graph.assign import BALANCES, METHODS
from lightning_gnncomm.graph.folder import MANIFEST
from lightning_gnncomm.graph.quality import PartitionQuality
from lightning_gnncomm.graph.sources import SOURCES
from lightning_gnncomm.graph.store import partition_and_store, read_manifest

__all__ = ["build_parser", "run_partition"]

_EXAMPLES = """examples:
  gnncomm partition digits --parts 2 --out parts/
  gnncomm partition npz:graph.npz --parts 8 --out parts/ --balance train
  gnncomm fit --data.data parts/ --trainer.strategy halo --trainer.devices 8
"""


class _HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Keeps the lines of the examples."""


def build_parser() -> ArgumentParser:
    """Return the parser of the subcommand's arguments."""
    forms = "; ".join(SOURCES.values())
    method: Any = Literal[METHODS]
    balance: Any = Literal[BALANCES]
    parser = ArgumentParser(
        prog="gnncomm partition",
        description="Cuts a graph into parts and stores them in a folder, for `gnncomm fit --data.data FOLDER`.",
        epilog=_EXAMPLES,
        formatter_class=_HelpFormatter,
    )
    parser.add_argument("graph", type=str, help=f"The graph: {forms}.")
    parser.add_argument("--parts", type=PositiveInt, required=True, help="Number of parts, one for each process.")
    parser.add_argument("--out", type=Path, required=True, help="Folder to write. One with the same parts is kept.")
    parser.add_argument("--method", type=method, default="metis", help="How to cut.")
    parser.add_argument(
        "--balance",
        type=balance,
        nargs="+",
        default=["nodes"],
        help="What METIS gives the parts equal amounts of; several are balanced in their sum.",
    )
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="Seed of the partitioning.")
    parser.add_argument(
        "--normalize_features", type=bool, default=False, help="Divide each row of x by its sum before storing it."
    )
    parser.add_argument("--split", type=int | None, default=None, help="Which of several splits to use as masks.")
    parser.add_argument(
        "--add_features", type=str | None, default=None, help="For a graph without x: 'degree' or 'constant'."
    )
    parser.add_argument("--root", type=Path | None, default=None, help="Folder for downloaded datasets.")
    return parser


def run_partition(arguments: list[str]) -> None:
    """Run the subcommand.

    Raises:
        SystemExit: With status 2 if the arguments are wrong.
    """
    options = build_parser().parse_args(arguments)
    console = Console()
    is_new = not (options.out / MANIFEST).is_file()
    folder = partition_and_store(
        options.graph,
        options.parts,
        out=options.out,
        root=options.root,
        method=options.method,
        balance=options.balance,
        seed=options.seed,
        normalize_features=options.normalize_features,
        split=options.split,
        add_features=options.add_features,
        progress=True,
        console=console,
    )
    if not is_new:
        print("The same graph was already cut in the same way.")
        console.print(PartitionQuality.from_dict(read_manifest(folder)["quality"]).table())
    # Not through the console, which would break a long path into lines.
    print(f"Stored in {folder}. Train on it with --data.data {options.out} and {options.parts} devices in all.")
