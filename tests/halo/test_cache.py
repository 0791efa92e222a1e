"""Values kept for tensors: found by the very tensor, unchanged, and gone with it."""

from __future__ import annotations

import torch

from lightning_gnncomm.halo.cache import TensorMemo


def test_a_value_is_found_by_its_tensor_until_that_changes() -> None:
    memo: TensorMemo[str] = TensorMemo()
    x = torch.ones(3)
    memo.put("rows", x, ("dim 0",))
    assert memo.get(x, ("dim 0",)) == "rows"
    assert memo.get(x, ("dim 1",)) is None
    assert memo.get(x.view(3), ("dim 0",)) is None
    x.add_(1)
    assert memo.get(x, ("dim 0",)) is None
    memo.put("new rows", x, ("dim 0",))
    assert (memo.get(x, ("dim 0",)), len(memo)) == ("new rows", 1)


def test_a_value_goes_with_its_tensor_and_an_id_that_is_met_again_finds_nothing() -> None:
    memo: TensorMemo[int] = TensorMemo()
    met, again = set(), 0
    for number in range(200):
        x = torch.zeros(1)
        again += id(x) in met
        met.add(id(x))
        assert memo.get(x) is None
        memo.put(number, x)
        del x
        assert len(memo) == 0
    assert again > 0


def test_a_value_lives_while_autograd_holds_its_tensor() -> None:
    memo: TensorMemo[str] = TensorMemo()
    weight = torch.ones(2, 2, requires_grad=True)
    x = weight * 2
    memo.put("rows", x)
    y = x.exp().square()
    del x
    assert len(memo) == 0  # nothing saves it
    z = y.exp()
    memo.put("rows", z)
    total = (z * z).sum()
    del z
    assert len(memo) == 1
    total.backward()
    assert len(memo) == 0


def test_values_of_tensors_whose_changes_are_not_counted_can_be_dropped() -> None:
    memo: TensorMemo[str] = TensorMemo()
    x = torch.ones(2)
    memo.put("rows", x)
    with torch.inference_mode():
        y = x * 2
    memo.put("rows", y)
    memo.forget_untracked()
    assert (memo.get(x), memo.get(y)) == ("rows", None)
