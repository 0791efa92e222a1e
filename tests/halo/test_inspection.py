"""Reading a forward for reductions over nodes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import global_mean_pool
from torch_geometric.utils import degree

from lightning_gnncomm.halo.inspection import far_reads


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


def along_features(x: Tensor) -> Any:
    y = F.softmax(x, dim=-1) + torch.sum(x, 1, keepdim=True) + x.norm(dim=1, keepdim=True) + x.mean(-1, keepdim=True)
    y = torch.max(y, x) + F.normalize(y, 2.0)
    return F.normalize(y) + max(1, 2) + sum([y, y]) + y.softmax(-1)


def at_target(x: Tensor, edge_index: Tensor, col: Tensor) -> Any:
    return degree(edge_index[1], 10) + x[col] + x[edge_index[1]] + x[0]


class Net(torch.nn.Module):
    def forward(self, x: Tensor) -> Any:
        return self.norm(x) + self.max(x, 0)


@pytest.mark.parametrize(
    "function", [whole, rows, both, unknown, pooled, sorted_rows, counted_at_source, read_at_source]
)
def test_reductions_over_rows_are_found_with_their_line(function: Any) -> None:
    found = far_reads(function)
    assert found is not None
    assert len(found) == 1
    assert found[0].endswith(f"in line {function.__code__.co_firstlineno + 1}")


def test_reductions_along_features_are_not() -> None:
    assert far_reads(along_features) == []


def test_what_is_at_the_target_end_is_at_hand() -> None:
    assert far_reads(at_target) == []


def test_modules_with_the_name_of_a_reduction_are_judged_for_themselves() -> None:
    assert far_reads(Net.forward) == []


def test_code_without_source_cannot_be_read() -> None:
    assert far_reads(eval("lambda x: x.mean()")) is None
