"""The table: a row a configuration, with its result, and what made it worse than before."""

from __future__ import annotations

import multiprocessing
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from tests.conformance.comparison import TOLERANCE, compare
from tests.conformance.discovery import all_cases, without_recipe
from tests.conformance.standins import pyg_lib_ops
from tests.conformance.suite import Case, Pass, double_precision, on_ranks, on_whole_graph, refusal_of
from tests.conformance.twins import TWINS

__all__ = ["EXACT", "GOOD", "MISSING", "REFUSED", "WRONG", "Row", "missing_rows", "row_of", "rows_of", "run"]

EXACT, REFUSED, MISSING, WRONG = "exact", "refused", "not installable", "wrong"
GOOD = (EXACT, REFUSED, MISSING)
TWIN_DIFFERENCE = 1e-6


@dataclass(frozen=True)
class Row:
    """What became of one configuration.

    Args:
        group: Part of PyG.
        name: Class or composition.
        options: What was varied.
        result: One of ``"exact"``, ``"refused"``, ``"not installable"`` and ``"wrong"``.
        why: The reason a user is told, the package that is missing, or what differs.
        error: Largest relative difference, ``None`` if it was not computed.
        exchanges: Forward and backward exchanges of rows in one step of a hidden layer, and sums over all ranks.
        first: The same for a first layer, which reads the features of the batch.
        if_allowed: What a refused configuration does when it is named in ``allow``.
    """

    group: str
    name: str
    options: str
    result: str
    why: str = ""
    error: float | None = None
    exchanges: str = ""
    first: str = ""
    if_allowed: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What names the row in two runs."""
        return self.group, self.name, self.options


def rows_of(cases: Iterable[Case], twins: bool = True) -> Iterator[Row]:
    """Yield the row of each case."""
    with warnings.catch_warnings(), double_precision(), pyg_lib_ops():
        warnings.simplefilter("ignore")
        for case in cases:
            yield row_of(case, twins)


def missing_rows() -> list[Row]:
    """Return a wrong row for each class without a recipe."""
    return [Row(group, name, "", WRONG, "no recipe: new in this PyG?") for group, name in without_recipe()]


def row_of(case: Case, twins: bool = True) -> Row:
    """Try one configuration; inside :func:`double_precision`."""
    try:
        model = case.module()
    except ImportError as error:
        return Row(*_key(case), MISSING, str(error).splitlines()[0])
    refusal = refusal_of(model)
    if refusal is not None:
        return Row(*_key(case), REFUSED, _reasons(refusal, model), if_allowed=_if_allowed(case, model))
    if case.unfit:
        return Row(*_key(case), WRONG, "taken, though it cannot run over parts of a graph")
    return _row_of_a_taken_model(case, model, twins)


def _key(case: Case) -> tuple[str, str, str]:
    return case.group, case.name, case.options


def _row_of_a_taken_model(case: Case, model: nn.Module, twins: bool) -> Row:
    expected = on_whole_graph(case, model)
    try:
        actual = on_ranks(case, model)
    except Exception as error:  # noqa: BLE001  # any failure is the row's result
        return Row(*_key(case), REFUSED if _is_ours(error) else WRONG, _first_line(error))
    difference = compare(expected, actual)
    found = actual[0]
    rest = {"error": difference.error, "exchanges": str(found.counts), "first": str(found.raw)}
    if not difference.error <= TOLERANCE:
        return Row(*_key(case), WRONG, f"differs: {difference.where}", **rest)
    harmless = [name for name in TWINS if twins and not _twin_shows(case, model, expected, found, name)]
    if harmless:
        return Row(*_key(case), WRONG, f"shows nothing: it agrees {' and '.join(harmless)} too", **rest)
    return Row(*_key(case), EXACT, **rest)


def _twin_shows(case: Case, model: nn.Module, expected: Pass, found: Pass, name: str) -> bool:
    role, spoil = TWINS[name]
    if role not in found.roles:
        return True  # nothing to spoil
    try:
        actual = on_ranks(case, model, spoil, ("learned", "eval"))
    except Exception:  # noqa: BLE001  # a failure shows it as well
        return True
    return not compare(expected, actual).error <= TWIN_DIFFERENCE


def _if_allowed(case: Case, model: nn.Module) -> str:
    if case.unfit:
        return ""
    try:
        difference = compare(on_whole_graph(case, model), on_ranks(case, model))
    except Exception as error:  # noqa: BLE001  # any failure is what happens
        return f"raises {type(error).__name__}"
    return EXACT if difference.error <= TOLERANCE else f"differs by {difference.error:.0e}"


def _is_ours(error: Exception) -> bool:
    """Whether a step was refused by name: raised in the package, naming the layer by its path."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return "lightning_gnncomm" in last.filename and "'layer" in str(error)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__} in the first step: {str(error).splitlines()[0] if str(error) else ''}"


def _reasons(refusal: str, model: nn.Module) -> str:
    """Return the reasons of a refusal, each once: the lines that name a module by its path."""
    lines = [line.strip() for line in refusal.splitlines() if line.startswith("  '")]
    return "; ".join(dict.fromkeys(line.partition(": ")[2] for line in lines))


def _share(task: tuple[Sequence[str], bool, int, int]) -> list[tuple[int, Row]]:
    """Return numbered rows of every ``jobs``-th case."""
    names, twins, job, jobs = task
    torch.set_num_threads(1)
    chosen = [(i, case) for i, case in enumerate(all_cases()) if not names or any(n in case.name for n in names)]
    mine = chosen[job::jobs]
    return list(zip([i for i, _ in mine], rows_of([case for _, case in mine], twins), strict=True))


def run(names: Sequence[str], twins: bool, jobs: int) -> list[Row]:
    """Return the rows of the chosen classes, tried in several processes."""
    tasks = [(names, twins, job, jobs) for job in range(jobs)]
    if jobs == 1:
        numbered = _share(tasks[0])
    else:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            numbered = [row for share in pool.map(_share, tasks, chunksize=1) for row in share]
    return [row for _, row in sorted(numbered, key=lambda pair: pair[0])] + missing_rows()
