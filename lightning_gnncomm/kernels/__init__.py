"""Tensor kernels behind ``torch.library`` ops of the namespace ``gnncomm``."""

from lightning_gnncomm.kernels.ops import (
    counter_uniform,
    k_bit_decode,
    k_bit_encode,
    one_bit_decode,
    one_bit_encode,
    sign_decode,
    sign_encode,
)
from lightning_gnncomm.kernels.reference import k_bit_row_nbytes, sign_row_nbytes

__all__ = [
    "counter_uniform",
    "k_bit_decode",
    "k_bit_encode",
    "k_bit_row_nbytes",
    "one_bit_decode",
    "one_bit_encode",
    "sign_decode",
    "sign_encode",
    "sign_row_nbytes",
]
