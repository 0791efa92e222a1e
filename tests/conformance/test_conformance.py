"""One configuration of each class in the fast tier; all of them, against ``docs/support.md``, in the slow one."""

from __future__ import annotations

import contextlib
import copy
import warnings

import pytest
import torch
from torch import nn
from torch_geometric.nn import conv

from lightning_gnncomm.comm.wire import DistributedWire
from lightning_gnncomm.testing import RankPool
from tests.conformance import discovery
from tests.conformance.adjacencies import ADJACENCIES
from tests.conformance.comparison import TOLERANCE, compare
from tests.conformance.discovery import all_cases, classes_of
from tests.conformance.graphs import graph
from tests.conformance.recipes import Inputs
from tests.conformance.standins import pyg_lib_ops
from tests.conformance.suite import Case, double_precision, on_rank, on_whole_graph, refusal_of
from tests.conformance.support import PATH, document, read, worse
from tests.conformance.table import EXACT, GOOD, REFUSED, WRONG, Row, missing_rows, rows_of, run

RANKS = 3
SAMPLE = [
    "GCNConv",
    "GATv2Conv",
    "ChebConv",
    "TransformerConv",
    "GPSConv",
    "APPNP",
    "BatchNorm",
    "GraphSAGE",
    "pyg.Sequential",
]


def first_cases() -> dict[str, Case]:
    """The first configuration of each class."""
    found: dict[str, Case] = {}
    for case in all_cases():
        found.setdefault(f"{case.group}-{case.name}", case)
    return found


FIRST = first_cases()


def row(case: Case, twins: bool = False) -> Row:
    (found,) = rows_of([case], twins)
    return found


def test_every_class_of_the_installed_pyg_has_a_recipe() -> None:
    assert missing_rows() == []
    assert len(classes_of("conv")) > 60


@pytest.mark.parametrize("name", FIRST)
def test_one_configuration_of_each_class_is_exact_or_refused(name: str) -> None:
    found = row(FIRST[name])
    recorded = read(PATH.read_text()).get(found.key)
    assert found.result in GOOD, found.why
    assert recorded is None or not worse({found.key: recorded}, [found], everything=False)


@pytest.mark.parametrize("name", ["GCNConv", "GATConv", "SGConv", "GraphNorm", "GCN"])
def test_what_is_exact_is_not_so_without_exchange_degrees_or_statistics(name: str) -> None:
    (case,) = (case for case in FIRST.values() if case.name == name)
    assert row(case, twins=True).result == EXACT


@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv", "GATConv", "SGConv", "GIN"])
def test_what_is_called_with_a_matrix_is_exact_and_not_so_without_exchange_or_degrees(name: str) -> None:
    case = next(case for case in all_cases() if case.name == name and case.kind == "adj_t")
    assert row(case, twins=True).result == EXACT


def test_every_layer_that_takes_a_matrix_in_one_process_has_a_recipe() -> None:
    takers = set()
    with warnings.catch_warnings(), double_precision(), pyg_lib_ops():
        warnings.simplefilter("ignore")
        for case in all_cases():
            reads_edges = isinstance(case.call, Inputs) and "edge_index" in case.call.positional
            has_recipe = case.name in ADJACENCIES.get(case.group, [case.name])
            if has_recipe or case.kind != "random" or case.unfit or not reads_edges:
                continue
            with contextlib.suppress(Exception):  # whatever PyG says of it
                model = case.module()
                data = copy.copy(graph("adj_t"))
                data.edge_index, data.edge_weight = data.adj_t, None
                case.call(model.layer, data)
                if refusal_of(model) is None:
                    takers.add((case.group, case.name))
    assert takers == set()


def test_a_row_that_shows_nothing_is_wrong() -> None:
    class Deaf(conv.GCNConv):
        """Exchanges rows and does without them."""

        def message(self, x_j: torch.Tensor, edge_weight: torch.Tensor) -> torch.Tensor:
            return 0 * x_j

    case = Case("composition", "Deaf", "", lambda: Deaf(6, 6), FIRST["conv-GCNConv"].call)
    found = row(case, twins=True)
    assert found.result == WRONG
    assert "shows nothing: it agrees without exchange" in found.why


def test_a_new_class_of_pyg_is_a_failing_row(monkeypatch: pytest.MonkeyPatch) -> None:
    class BrandNewConv(conv.MessagePassing):
        pass

    monkeypatch.setattr(conv, "BrandNewConv", BrandNewConv, raising=False)
    monkeypatch.setattr(conv, "__all__", [*conv.__all__, "BrandNewConv"])
    (found,) = missing_rows()
    assert (found.name, found.result) == ("BrandNewConv", WRONG)
    assert discovery.without_recipe() == [("conv", "BrandNewConv")]


def test_a_page_is_read_as_it_was_written_and_what_is_worse_is_found() -> None:
    rows = [
        Row("conv", "GCNConv", "K=1 | 2", EXACT, error=1e-16, exchanges="1+1", first="0+0"),
        Row("conv", "WLConv", "", REFUSED, "it numbers colours"),
        Row("norm", "GraphNorm", "", EXACT, error=0.0, exchanges="0+0, 2 sums", first="0+0, 2 sums"),
    ]
    before = read(document(rows))
    assert [(r.result, r.exchanges, r.first) for r in before.values()] == [
        (r.result, r.exchanges, r.first) for r in rows
    ]
    assert before.keys() == {row.key for row in rows}
    assert worse(before, rows, everything=True) == []
    more = Row("conv", "GCNConv", "K=1 | 2", EXACT, error=1e-16, exchanges="2+2", first="0+0")
    refused = Row("norm", "GraphNorm", "", REFUSED, "because")
    found = worse(before, [more, refused], everything=True)
    assert [sentence.rpartition("): ")[2] for sentence in found] == [
        "exchanged 1+1, now 2+2",
        "was exact, is refused: because",
        "no longer tried",
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_configuration_is_worse_than_recorded() -> None:
    rows = run((), twins=True, jobs=2)
    assert [f"{r.name} ({r.options}): {r.why}" for r in rows if r.result == WRONG] == []
    assert worse(read(PATH.read_text()), rows, everything=True) == []


def over_processes(names: list[str]) -> dict[str, float]:
    """Largest error of the first configuration of some classes, on this rank of a process group."""
    wire, errors = DistributedWire(), {}
    with warnings.catch_warnings(), double_precision(), pyg_lib_ops():
        warnings.simplefilter("ignore")
        for case in (case for case in first_cases().values() if case.name in names):
            model: nn.Module = case.module()
            errors[case.name] = compare(on_whole_graph(case, model), [on_rank(wire, case, model)]).error
    return errors


@pytest.mark.slow
@pytest.mark.processes
def test_a_sample_is_exact_over_real_processes() -> None:
    with RankPool(RANKS) as pool:
        for errors in pool.run(over_processes, SAMPLE):
            assert errors.keys() == set(SAMPLE)
            assert max(errors.values()) <= TOLERANCE, errors
