"""The page of a report: one file of HTML that needs no other."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from statistics import median

from lightning_gnncomm.callbacks.accounting import PARAMETERS, compression, sum_records
from lightning_gnncomm.callbacks.events import Run
from lightning_gnncomm.callbacks.table import format_bytes
from lightning_gnncomm.comm.traffic import TrafficRecord

__all__ = ["Section", "build_page"]

_STYLE = """
body { font-family: system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h2 { margin-top: 2.5rem; } p { max-width: 50rem; } img { max-width: 100%; }
table { border-collapse: collapse; font-size: 0.9rem; } th { text-align: left; }
th, td { padding: 0.25rem 0.8rem 0.25rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
.note { color: #8a4b00; }
"""

Section = tuple[str, str, bytes | None, str]
"""Heading, text, the plot as SVG (or nothing), and what to say if there is none."""


def build_page(runs: Sequence[tuple[str, Run]], sections: Sequence[Section]) -> str:
    """Return the page as text.

    Args:
        runs: Names and records.
        sections: Plots, in their order.
    """
    parts = [_overview(runs)]
    for heading, text, plot, missing in sections:
        parts.append(f"<h2>{escape(heading)}</h2>")
        if plot is None:
            parts.append(f"<p>{escape(missing)}</p>")
            continue
        source = base64.b64encode(plot).decode()
        parts.append(f'<p>{escape(text)}</p>\n<img alt="{escape(heading)}" src="data:image/svg+xml;base64,{source}">')
    parts.append(_decisions(runs))
    title = "gnncomm report: " + ", ".join(name for name, _ in runs)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _overview(runs: Sequence[tuple[str, Run]]) -> str:
    columns = [_facts(run) for _, run in runs]
    names = list(dict.fromkeys(name for facts in columns for name in facts))
    rows = [["", *(name for name, _ in runs)]]
    rows += [[name, *(facts.get(name, "") for facts in columns)] for name in names]
    notes = [f'<p class="note">{escape(name)}: {escape(note)}</p>' for name, run in runs for note in _notes(run)]
    return "\n".join(["<h2>Overview</h2>", _table(rows), *notes])


def _facts(run: Run) -> Mapping[str, str]:
    """Return what the first table says of a run."""
    halo = sum_records(
        (record for epoch in run.epochs for slot, record in epoch.traffic.items() if slot != PARAMETERS), TrafficRecord
    )
    facts = {"folder": str(run.path)}
    facts |= {name: str(value) for name, value in run.settings.items()}
    facts |= {
        "epochs": f"{run.epochs[0].epoch} to {run.epochs[-1].epoch}",
        "training steps": f"{run.epochs[-1].step:,}",
        "halo bytes an epoch (median)": format_bytes(median(sum(epoch.sent_bytes) for epoch in run.epochs)),
        "compression": f"{compression(halo):.1f}x",
        "seconds an epoch (median)": f"{median(max(epoch.seconds) for epoch in run.epochs):.4g}",
        "of these waiting": f"{median(max(epoch.wait_seconds) for epoch in run.epochs):.4g}",
        "hidden transfers": f"{median(max(epoch.hidden_seconds) for epoch in run.epochs):.4g}",
        "decisions of the schedule": str(sum(len(epoch.decisions) for epoch in run.epochs)),
    }
    return facts | {f"last {name}": f"{value:.5g}" for name, value in run.epochs[-1].metrics.items()}


def _notes(run: Run) -> list[str]:
    notes = []
    if not run.has_ended:
        notes.append("The run was stopped, or still goes on.")
    if run.is_cut:
        notes.append("The last line of the record was being written then, and is left out.")
    if run.starts > 1:
        notes.append(f"The run was started {run.starts} times; epochs that were run again count as they were last run.")
    return notes


def _decisions(runs: Sequence[tuple[str, Run]]) -> str:
    rows = [["run", "epoch", "step", "what", "of", "why"]]
    for name, run in runs:
        for epoch in run.epochs:
            for step, decision in epoch.decisions:
                slot = "all messages" if decision.slot is None else f"{decision.slot}, {decision.slot.role.value}"
                rows.append([name, str(epoch.epoch), str(step), decision.what, slot, decision.why])
    content = _table(rows) if len(rows) > 1 else "<p>The schedule decided nothing.</p>"
    return f"<h2>Decisions of the schedule</h2>\n{content}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    for first, *rest in body:
        lines.append(f"<tr><th>{escape(first)}</th>" + "".join(f"<td>{escape(cell)}</td>" for cell in rest) + "</tr>")
    return "<table>\n" + "\n".join(lines) + "\n</table>"
