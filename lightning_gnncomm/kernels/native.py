"""CPU kernels from ``csrc``, loaded with ctypes, with the signatures and the bits of :mod:`~lightning_gnncomm.kernels.reference`.

Types without a native kernel, and everything where the library was not built, are left to the reference kernels. The build of
the package does not make the library yet: CMake does, and the variable ``GNNCOMM_NATIVE``, read at the first use, names the file
(``0`` turns a file beside this module off). A file that is named but cannot be used gives one warning.
"""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from pathlib import Path

import torch
from torch import Tensor

from lightning_gnncomm.kernels import reference

__all__ = ["k_bit_decode", "k_bit_encode", "library", "use_level"]

_ABI_VERSION = 1
_FILE = Path(__file__).with_name("libgnncomm_native.so")
_INT, _INT64, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
_ENCODE = (_POINTER, _INT64, _INT64, _INT64, _INT, _POINTER, _INT64, ctypes.c_uint64, _POINTER, _INT)
_DECODE = (_POINTER, _INT64, _INT64, _INT64, _INT, _POINTER, _INT)
_ENCODE_NAMES = {torch.float32: "gnncomm_encode_f32", torch.float64: "gnncomm_encode_f64"}
_DECODE_NAMES = {
    torch.float32: "gnncomm_decode_f32",
    torch.float64: "gnncomm_decode_f64",
    torch.bfloat16: "gnncomm_decode_bf16",
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the native library, or ``None``: with one warning where it is there or named and cannot be used."""
    choice = os.environ.get("GNNCOMM_NATIVE", "")
    if choice == "0" or not (choice or _FILE.exists()):
        return None
    path = choice or _FILE
    try:
        loaded = ctypes.CDLL(str(path))
        version = loaded.gnncomm_abi_version()
        if version != _ABI_VERSION:
            raise OSError(f"{path} has the interface {version} instead of {_ABI_VERSION}")
    except (OSError, AttributeError) as error:
        warnings.warn(
            f"The native kernels of lightning_gnncomm are not used, slower ones in PyTorch are ({error}). Build the library again, "
            "or set GNNCOMM_NATIVE=0.",
            RuntimeWarning,
        )
        return None
    for names, arguments in ((_ENCODE_NAMES, _ENCODE), (_DECODE_NAMES, _DECODE)):
        for name in names.values():
            getattr(loaded, name).argtypes = arguments
    return loaded


def use_level(level: int) -> int:
    """Use an instruction set (0 portable, 1 AVX2, 2 AVX-512) or the best one below that the machine has; for tests.

    Returns:
        The level in force, or -1 where the library is not used.
    """
    loaded = library()
    return -1 if loaded is None else int(loaded.gnncomm_use_level(level))


def k_bit_encode(rows_RF: Tensor, bits: int, row_key_R: Tensor, stream: int) -> Tensor:
    """See :func:`lightning_gnncomm.kernels.ops.k_bit_encode`."""
    loaded = library()
    num_rows, num_features = rows_RF.shape
    if loaded is None or num_features == 0:
        return reference.k_bit_encode(rows_RF, bits, row_key_R, stream)
    # A half type computes in float32, which holds its values.
    rows_RF = rows_RF.to(torch.promote_types(rows_RF.dtype, torch.float32))
    if rows_RF.stride(1) != 1:
        rows_RF = rows_RF.contiguous()
    payload = rows_RF.new_empty((num_rows, reference.k_bit_row_nbytes(num_features, bits)), dtype=torch.uint8)
    _call(
        getattr(loaded, _ENCODE_NAMES[rows_RF.dtype]),
        rows_RF.data_ptr(),
        rows_RF.stride(0),
        num_rows,
        num_features,
        bits,
        row_key_R.data_ptr(),
        row_key_R.stride(0),
        stream & (1 << 64) - 1,
        payload.data_ptr(),
    )
    return payload


def k_bit_decode(payload: Tensor, bits: int, num_features: int, dtype: torch.dtype) -> Tensor:
    """See :func:`lightning_gnncomm.kernels.ops.k_bit_decode`."""
    loaded = library()
    is_native = dtype in _DECODE_NAMES and (bits == 1 or dtype != torch.bfloat16) and num_features > 0
    if loaded is None or not is_native:
        return reference.k_bit_decode(payload, bits, num_features, dtype)
    if payload.stride(1) != 1:
        payload = payload.contiguous()
    num_rows = payload.size(0)
    rows_RF = payload.new_empty((num_rows, num_features), dtype=dtype)
    _call(
        getattr(loaded, _DECODE_NAMES[dtype]),
        payload.data_ptr(),
        payload.stride(0),
        num_rows,
        num_features,
        bits,
        rows_RF.data_ptr(),
    )
    return rows_RF


def _call(function: ctypes._NamedFuncPointer, *arguments: int) -> None:
    if function(*arguments, torch.get_num_threads()) != 0:
        raise RuntimeError(f"Expected arguments that {function.__name__} takes, got {arguments}.")
