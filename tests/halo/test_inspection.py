"""Reading a forward for reductions over nodes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import global_mean_pool, knn_graph
from torch_geometric.utils import degree, negative_sampling, scatter, softmax, to_dense_batch

from lightning_gnncomm.halo.inspection import far_reads, far_reads_of


def whole(x: Tensor) -> Any:
    return x.mean()


def rows(x: Tensor) -> Any:
    return torch.sum(x, 0)


def both(x: Tensor) -> Any:
    return x.std(dim=(0, 1))


def unknown(x: Tensor, dim: int) -> Any:
    return F.softmax(x, dim=dim)


def pooled(x: Tensor) -> Any:
    return global_mean_pool(x, None)


def sorted_rows(x: Tensor) -> Any:
    return x.argsort(0)


def counted_at_source(edge_index: Tensor) -> Any:
    return degree(edge_index[0], 10)


def read_at_source(x: Tensor, row: Tensor) -> Any:
    return x[row]


def multiplied(x: Tensor, adj_t: Tensor) -> Any:
    return adj_t @ x


def multiplied_by_name(x: Tensor, batch: Any) -> Any:
    return torch.sparse.mm(batch.adj_t, x)


def multiplied_by_method(x: Tensor, edge_index: Any) -> Any:
    return edge_index.matmul(x)


def by_graph(x: Tensor, batch: Tensor) -> Any:
    return scatter(x, batch, reduce="mean")


def by_graph_of_data(data: Any) -> Any:
    return scatter(data.x, index=data.batch)


def gram(x: Tensor) -> Any:
    return x.t() @ x


def pairs(x: Tensor) -> Any:
    return torch.mm(x, x.T)


def contracted(x: Tensor) -> Any:
    return torch.einsum("nd,ne->de", x, x)


def neighbours(x: Tensor) -> Any:
    return torch.nn.Sequential(knn_graph(x, 3))


def sampled(edge_index: Tensor) -> Any:
    return negative_sampling(edge_index)


def padded(x: Tensor, batch: Tensor) -> Any:
    return to_dense_batch(x, batch)


def row_by_row(self: Any, x: Tensor, col: Tensor, weight: Tensor) -> Any:
    y = x @ self.weight.t() + x @ weight.T + torch.einsum("io,ni->no", self.weight, x) + torch.mm(x, weight)
    y = self.norm(y, col) + self.sum(y)
    return scatter(y, col) + softmax(y, col) + torch.einsum("nhd,nhd->nh", y, x) + self.weight.t() @ weight


def along_features(x: Tensor) -> Any:
    y = F.softmax(x, dim=-1) + torch.sum(x, 1, keepdim=True) + x.norm(dim=1, keepdim=True) + x.mean(-1, keepdim=True)
    y = torch.max(y, x) + F.normalize(y, 2.0)
    y = y @ torch.eye(y.size(1)) @ x.matmul(y)
    return F.normalize(y) + max(1, 2) + sum([y, y]) + y.softmax(-1)


def at_target(x: Tensor, edge_index: Tensor, col: Tensor) -> Any:
    return degree(edge_index[1], 10) + x[col] + x[edge_index[1]] + x[0]


class Net(torch.nn.Module):
    def forward(self, x: Tensor) -> Any:
        return self.norm(x) + self.max(x, 0)


@pytest.mark.parametrize(
    "function",
    [
        *(multiplied, multiplied_by_name, multiplied_by_method),
        *(whole, rows, both, unknown, pooled, sorted_rows, counted_at_source, read_at_source),
        *(by_graph, by_graph_of_data, gram, pairs, contracted, neighbours, sampled, padded),
    ],
)
def test_reductions_over_rows_are_found_with_their_line(function: Any) -> None:
    found = far_reads(function)
    assert found is not None
    assert len(found) == 1
    assert found[0].endswith(f"in line {function.__code__.co_firstlineno + 1}")


class Whole:
    """Reduces in a method that forward reaches over another one."""

    def forward(self, x: Tensor) -> Any:
        return self.first(x)

    def first(self, x: Tensor) -> Any:
        return self.second(x) + self.first(x)

    def second(self, x: Tensor) -> Any:
        return x - x.mean(0)

    def unused(self, x: Tensor) -> Any:
        return x.sum(0)


def test_methods_that_forward_calls_are_read_too_unless_a_library_wrote_them() -> None:
    assert far_reads_of(Whole, ()) == [f"'x.mean(0)' in line {Whole.second.__code__.co_firstlineno + 1}"]
    assert far_reads_of(Whole, (f"{__name__}.",)) == []


def test_reductions_along_features_are_not() -> None:
    assert far_reads(along_features) == []
    assert far_reads(row_by_row) == []


def test_what_is_at_the_target_end_is_at_hand() -> None:
    assert far_reads(at_target) == []


def test_modules_with_the_name_of_a_reduction_are_judged_for_themselves() -> None:
    assert far_reads(Net.forward) == []


def test_code_without_source_cannot_be_read() -> None:
    assert far_reads(eval("lambda x: x.mean()")) is None
