"""``gnncomm report``: a page with plots from what RunRecorder wrote."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from lightning_gnncomm.callbacks.events import Run, read_run
from lightning_gnncomm.cli.page import Section, build_page

__all__ = ["build_parser", "run_report"]

_EXAMPLES = """examples:
  gnncomm fit --trainer.callbacks+=RunRecorder --trainer.strategy sylvie_async --trainer.devices 2
      Train, and write down what happens. Lightning says where: lightning_logs/version_0.

  gnncomm report lightning_logs/version_0
      One page, report.html, with loss and metrics, bytes by message, a timeline of the ranks,
      and how old and how wrong the rows in use were. It needs no network to be looked at.

  gnncomm report lightning_logs/version_0 lightning_logs/version_1 --out compared.html --png plots/
      Several runs in the same plots, and each plot as a PNG file.

A run that still goes on or was killed has a report too, up to its last whole epoch.
Plots need matplotlib: pip install 'lightning-gnncomm[report]'
"""


class _HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Keeps the lines of the examples."""


def build_parser() -> ArgumentParser:
    """Return the parser of the subcommand's arguments."""
    parser = ArgumentParser(
        prog="gnncomm report",
        description="Writes a page with plots of one run, or of several together, recorded by the callback RunRecorder.",
        epilog=_EXAMPLES,
        formatter_class=_HelpFormatter,
    )
    parser.add_argument("runs", type=Path, nargs="+", help="Folders of runs: those that hold gnncomm/events.jsonl.")
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="The page to write.")
    parser.add_argument("--png", type=Path | None, default=None, help="Folder for the plots as PNG files.")
    return parser


def run_report(arguments: list[str]) -> None:
    """Run the subcommand.

    Raises:
        SystemExit: With status 2 if the arguments are wrong.
    """
    options = build_parser().parse_args(arguments)
    names = _names(options.runs)
    runs = [(name, read_run(path)) for name, path in zip(names, options.runs, strict=True)]
    written = write_report(runs, options.out, options.png)
    for path in written:
        print(f"Wrote {path}")


def write_report(runs: Sequence[tuple[str, Run]], out: Path, png: Path | None = None) -> list[Path]:
    """Write the page, and the plots as PNG files if a folder for them is given.

    Returns:
        What was written.
    """
    # Imported here, since matplotlib is optional.
    from lightning_gnncomm.cli.plots import PLOTS, draw

    sections: list[Section] = []
    images: dict[str, bytes] = {}
    for plot in PLOTS:
        files = draw(plot, runs, ["svg"] if png is None else ["svg", "png"])
        sections.append((plot.title, plot.text, files.get("svg"), plot.missing))
        if "png" in files:
            images[f"{plot.name}.png"] = files["png"]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(build_page(runs, sections), encoding="utf-8")
    written = [out]
    if png is not None:
        png.mkdir(parents=True, exist_ok=True)
        for name, content in images.items():
            (png / name).write_bytes(content)
            written.append(png / name)
    return written


def _names(paths: Sequence[Path]) -> list[str]:
    """Return short names that tell the runs apart."""
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]
