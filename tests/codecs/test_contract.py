"""What every codec promises, checked for all that are registered."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lightning_gnncomm.codecs import CODECS, Codec, RoundingKey, resolve_codec
from lightning_gnncomm.slots import Role, Slot

SLOT = Slot("conv", "x")
SHAPES = [(0, 0), (0, 5), (3, 0), (1, 1), (4, 8), (5, 13), (200, 64)]
OF_ROWS = sorted(name for name, make in CODECS.items() if not make().is_sparse)
"""Codecs that encode rows; messages of sparse ones are packed as a whole, see test_threshold.py and test_sparse.py."""
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(params=OF_ROWS)
def codec(request: pytest.FixtureRequest) -> Codec:
    return resolve_codec(request.param).for_slot(SLOT)


def make_rows(shape: tuple[int, int], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def make_key(num_rows: int, stream: int = 5) -> RoundingKey:
    return RoundingKey(stream, torch.arange(num_rows) * 3 + 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_and_types(codec: Codec, shape: tuple[int, int], dtype: torch.dtype):
    rows = make_rows(shape, dtype)
    payload = codec.encode(rows, make_key(shape[0]))
    assert payload.dtype == torch.uint8
    assert payload.shape == (shape[0], codec.row_nbytes(shape[1], dtype))
    decoded = codec.decode(payload, shape[1], dtype)
    assert decoded.shape == rows.shape
    assert decoded.dtype == dtype


def test_rows_come_back_near_themselves(codec: Codec):
    rows = make_rows((200, 64))
    decoded = codec.decode(codec.encode(rows, make_key(200)), 64, torch.float32)
    lo, hi = rows.aminmax(dim=1, keepdim=True)
    slack = 2.0**-7 * rows.abs().amax(dim=1, keepdim=True)
    assert (decoded >= lo - slack).all()
    assert (decoded <= hi + slack).all()


def test_encoding_is_a_function_of_its_arguments(codec: Codec):
    rows = make_rows((50, 20))
    first = codec.encode(rows, make_key(50))
    codec.encode(rows, make_key(50, stream=6))
    torch.manual_seed(99)
    assert torch.equal(codec.encode(rows, make_key(50)), first)


def test_rows_are_encoded_alike_in_any_company(codec: Codec):
    rows, key = make_rows((50, 20)), make_key(50)
    whole = codec.encode(rows, key)
    part = torch.tensor([40, 3, 17])
    assert torch.equal(codec.encode(rows[part], RoundingKey(key.stream, key.row[part])), whole[part])
    assert torch.equal(codec.decode(whole[part], 20, torch.float32), codec.decode(whole, 20, torch.float32)[part])


def test_strides_do_not_enter(codec: Codec):
    rows = make_rows((30, 12))
    turned = rows.t().contiguous().t()
    assert not turned.is_contiguous()
    assert torch.equal(codec.encode(turned, make_key(30)), codec.encode(rows, make_key(30)))


def test_a_payload_may_begin_anywhere_in_a_message(codec: Codec):
    rows = make_rows((30, 12))
    payload = codec.encode(rows, make_key(30))
    message = torch.cat((torch.zeros(1, dtype=torch.uint8), payload.flatten()))
    shifted = message[1:].view(payload.shape)
    assert torch.equal(codec.decode(shifted, 12, torch.float32), codec.decode(payload, 12, torch.float32))


def test_inputs_are_left_alone(codec: Codec):
    rows = make_rows((30, 12))
    before = rows.clone()
    payload = codec.encode(rows, make_key(30))
    sent = payload.clone()
    codec.decode(payload, 12, torch.float32)
    assert torch.equal(rows, before)
    assert torch.equal(payload, sent)


def test_nothing_is_recorded_for_autograd(codec: Codec):
    rows = make_rows((3, 4)).requires_grad_()
    with torch.no_grad():
        payload = codec.encode(rows, make_key(3))
    assert not codec.decode(payload, 4, torch.float32).requires_grad


def test_rows_that_are_not_finite_stay_loud(codec: Codec):
    rows = make_rows((3, 4))
    rows[1, 2] = torch.nan
    decoded = codec.decode(codec.encode(rows, make_key(3)), 4, torch.float32)
    assert decoded[1, 2].isnan()
    assert decoded[[0, 2]].isfinite().all()


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 2.0**-27, 2.0**100])
@pytest.mark.parametrize("num_features", [1, 8, 11])
def test_constant_rows_that_bf16_holds_come_back_exactly(codec: Codec, value: float, num_features: int):
    rows = torch.full((3, num_features), value)
    decoded = codec.decode(codec.encode(rows, make_key(3)), num_features, torch.float32)
    assert torch.equal(decoded, rows)


@pytest.mark.parametrize("scale", [1e-8, 1e30])
def test_the_scale_of_rows_does_not_enter(codec: Codec, scale: float):
    """The relative error of tiny and huge rows is that of others, up to what rounding to bf16 makes of the scale."""
    rows = make_rows((50, 20), torch.float64)
    decoded, other = (codec.decode(codec.encode(x, make_key(50)), 20, torch.float64) for x in (rows, rows * scale))
    error, expected = (other / scale - rows).norm(), (decoded - rows).norm()
    assert float(error) == pytest.approx(float(expected), rel=0.1)


def test_codecs_are_found_by_name():
    names = {"identity", "one_bit", "2bit", "4bit", "8bit", "delta_sign", "adaptive"}
    assert names <= set(CODECS)
    for name, make in CODECS.items():
        assert repr(resolve_codec(name)) == repr(make())
    assert len({repr(make()) for make in CODECS.values()}) == len(CODECS)
    instance = CODECS["identity"]()
    assert resolve_codec(instance) is instance


@pytest.mark.parametrize("name", sorted(CODECS))
def test_the_codec_of_a_slot_is_one_that_encodes(name: str):
    for role in (Role.FEATURE, Role.GRADIENT):
        slot = SLOT.as_role(role)
        codec = resolve_codec(name).for_slot(slot)
        assert codec.for_slot(slot) is codec


def test_differences_are_coded_by_codecs_that_say_so():
    assert {name for name, make in CODECS.items() if make().is_delta} == {"delta_sign"}


def test_an_unknown_name_lists_those_that_exist():
    with pytest.raises(ValueError, match=r"\['2bit', '4bit', .*'identity', 'one_bit'.*got 'two_bit'"):
        resolve_codec("two_bit")


def test_the_table_in_the_documents_is_true():
    text = (Path(__file__).parents[2] / "docs" / "usage.md").read_text(encoding="utf-8")
    rows = re.findall(r'^\| `"(\w+)"` \|.*?\|.*?\| (\d+ .*) \| (\w+) \|$', text, flags=re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == OF_ROWS
    for name, cells, _ in rows:
        codec = resolve_codec(name).for_slot(SLOT)
        nbytes = [codec.row_nbytes(width, torch.float32) for width in (64, 256, 512)]
        ratios = [4 * width / size for width, size in zip((64, 256, 512), nbytes, strict=True)]
        assert cells.split(" | ") == [f"{size} ({ratio:.1f})" for size, ratio in zip(nbytes, ratios, strict=True)]


@pytest.mark.parametrize("name", OF_ROWS)
def test_codecs_are_exact_unbiased_or_contractive_as_the_table_says(name: str):
    text = (Path(__file__).parents[2] / "docs" / "usage.md").read_text(encoding="utf-8")
    (kind,) = re.findall(rf'^\| `"{name}"` \|.*\| (\w+) \|$', text, flags=re.MULTILINE)
    codec, times = resolve_codec(name).for_slot(SLOT), 20_000
    rows = make_rows((1, 10), torch.float64).expand(times, -1)
    decoded = codec.decode(codec.encode(rows, make_key(times)), 10, torch.float64)
    error, sigma = decoded.mean(dim=0) - rows[0], decoded.std(dim=0) / times**0.5
    is_unbiased = bool((error.abs() <= 4 * sigma + 1e-6).all())
    is_contractive = bool(((decoded - rows).norm(dim=1) < rows.norm(dim=1)).all())
    assert torch.equal(decoded, rows) == (kind == "exact")
    assert is_unbiased == (kind in ("exact", "unbiased"))
    assert is_contractive or kind == "unbiased"
