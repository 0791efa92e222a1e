"""The native CPU kernels give the bits of the plain-PyTorch ones, with every instruction set of this machine."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lightning_gnncomm.kernels import k_bit_encode, native, one_bit_decode, one_bit_encode, reference

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
BITS = [1, 2, 4, 8]
WIDTHS = [1, 2, 3, 7, 8, 9, 16, 31, 61, 255, 256, 257, 700]


@pytest.fixture
def library() -> None:
    if native.library() is None:
        pytest.skip("needs the native library: build it with CMake and name it in GNNCOMM_NATIVE")


@pytest.fixture(params=[0, 1, 2], ids=["portable", "avx2", "avx512"])
def level(request: pytest.FixtureRequest, library: None) -> Iterator[int]:
    try:
        if native.use_level(request.param) != request.param:
            pytest.skip("needs a machine with these instructions")
        yield request.param
    finally:
        native.use_level(2)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_one_nan(payload: Tensor) -> Tensor:
    """The payload with the ends as numbers, in which all NaNs are alike; their bits are not defined."""
    ends = payload[:, :4].clone(memory_format=torch.contiguous_format).view(torch.bfloat16)
    bits = ends.view(torch.int16).to(torch.int32)
    return torch.cat((torch.where(ends.isnan(), 1 << 20, bits), payload[:, 4:].to(torch.int32)), dim=1)


def check_rows(rows: Tensor, bits: int) -> None:
    key = torch.arange(rows.size(0)) * 2**33 - 5
    payload = native.k_bit_encode(rows, bits, key, 2**63 - 7)
    expected = reference.k_bit_encode(rows, bits, key, 2**63 - 7)
    assert payload.is_contiguous()
    assert torch.equal(with_one_nan(payload), with_one_nan(expected))
    check_payload(payload, bits, rows.size(1))


def check_payload(payload: Tensor, bits: int, num_features: int) -> None:
    for dtype in DTYPES:
        decoded = native.k_bit_decode(payload, bits, num_features, dtype)
        expected = reference.k_bit_decode(payload, bits, num_features, dtype)
        assert decoded.dtype == expected.dtype
        assert torch.equal(decoded.signbit()[~decoded.isnan()], expected.signbit()[~expected.isnan()])
        torch.testing.assert_close(decoded, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_features", WIDTHS)
def test_normal_rows_of_any_width(num_features: int, dtype: torch.dtype, bits: int, level: int):
    check_rows(normal(37, num_features).to(dtype), bits)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-300, 1e-45, 1e-41, 1e-39, 1e-37, 1e-7, 1e4, 1e37])
def test_rows_of_any_scale(scale: float, dtype: torch.dtype, bits: int, level: int):
    """Among them numbers that are subnormal, halved to such, or overflow."""
    check_rows((normal(300, 29) * scale).to(dtype), bits)
    check_rows((normal(300, 29).abs() * scale).to(dtype), bits)
    check_rows((normal(300, 1) * scale).to(dtype), bits)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_anywhere(dtype: torch.dtype, bits: int, level: int):
    values = torch.tensor(
        [0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan, -math.nan, 65504.0, 3.4e38, -3.4e38, 1e-45, 1e-40]
    )
    check_rows(values[:, None].expand(-1, 41).to(dtype), bits)  # constant rows
    for seed in range(3):
        rows = normal(60, 41, seed=seed)
        where = torch.randint(41, (60,), generator=torch.Generator().manual_seed(seed))
        rows[torch.arange(60), where] = values.double().repeat(5)[:60]
        check_rows(rows.relu().to(dtype) if seed == 2 else rows.to(dtype), bits)
    check_rows(torch.tensor([[0.0, -0.0] * 20, [-0.0, 0.0] * 20], dtype=dtype), bits)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("num_features", WIDTHS)
def test_payloads_of_random_bytes(num_features: int, bits: int, level: int):
    shape = (200, reference.k_bit_row_nbytes(num_features, bits))
    check_payload(
        torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)), bits, num_features
    )


@pytest.mark.parametrize("bits", BITS)
def test_strides_do_not_enter(bits: int, level: int):
    rows, key = normal(60, 40).float(), torch.arange(60) * 7
    expected = reference.k_bit_encode(rows, bits, key, 1)
    for same in (rows.t().contiguous().t(), rows.repeat(1, 2)[:, :40], rows.repeat_interleave(2, dim=1)[:, ::2]):
        assert torch.equal(native.k_bit_encode(same, bits, key.repeat_interleave(3)[::3], 1), expected)
    assert torch.equal(
        native.k_bit_encode(rows[:1].expand(60, -1), bits, key, 1),
        reference.k_bit_encode(rows[:1].repeat(60, 1), bits, key, 1),
    )
    message = torch.zeros(60, expected.size(1) + 5, dtype=torch.uint8)
    message[:, 3:-2] = expected
    decoded = reference.k_bit_decode(expected, bits, 40, torch.float32)
    assert torch.equal(native.k_bit_decode(message[:, 3:-2], bits, 40, torch.float32), decoded)
    assert torch.equal(native.k_bit_decode(message[::2, 3:-2], bits, 40, torch.float32), decoded[::2])
    turned = expected.t().contiguous().t()
    assert torch.equal(native.k_bit_decode(turned, bits, 40, torch.float32), decoded)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 1000, 1001])
def test_the_number_of_threads_does_not_enter(num_rows: int, library: None):
    rows, key = normal(num_rows, 300).float(), torch.arange(num_rows)
    expected = reference.k_bit_encode(rows, 1, key, 5)
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 2, 7):
            torch.set_num_threads(num_threads)
            payload = native.k_bit_encode(rows, 1, key, 5)
            assert torch.equal(payload, expected)
            decoded = native.k_bit_decode(payload, 1, 300, torch.float32)
            assert torch.equal(decoded, reference.k_bit_decode(payload, 1, 300, torch.float32))
    finally:
        torch.set_num_threads(before)


def test_the_ops_use_them(monkeypatch: pytest.MonkeyPatch, library: None):
    def fail(*args: object) -> Tensor:
        raise AssertionError("the reference kernel was called")

    rows, key = normal(5, 9).float(), torch.arange(5)
    expected = reference.k_bit_encode(rows, 1, key, 0)
    decoded = reference.k_bit_decode(expected, 1, 9, torch.float32)
    monkeypatch.setattr(reference, "k_bit_encode", fail)
    monkeypatch.setattr(reference, "k_bit_decode", fail)
    assert torch.equal(one_bit_encode(rows, key, 0), expected)
    assert torch.equal(k_bit_encode(rows, 1, key, 0), expected)
    assert torch.equal(one_bit_decode(expected, 9, torch.float32), decoded)


PROGRAM = """
import warnings, torch
from lightning_gnncomm.kernels import native, one_bit_encode
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        print(one_bit_encode(torch.tensor([[0.0, 1.0, 0.0, 1.0]]), torch.tensor([0]), 7).tolist())
caught = [warning for warning in caught if "native kernels" in str(warning.message)]
print(native.library() is None, len(caught))
"""


@pytest.mark.parametrize(("choice", "num_warnings"), [("", 0), ("0", 0), ("/nowhere/lib.so", 1), ("libm.so.6", 1)])
def test_without_a_library_the_reference_kernels_work_and_one_warning_says_so(choice: str, num_warnings: int):
    """The last is a library, but another one; the first names none, and none is built beside the module here."""
    if not choice and native._FILE.exists():
        pytest.skip("a library is built beside the module")
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"GNNCOMM_NATIVE": choice, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert result.stdout.splitlines() == ["[[0, 0, 128, 63, 10]]"] * 2 + [f"True {num_warnings}"]
