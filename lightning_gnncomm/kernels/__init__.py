"""Tensor kernels behind ``torch.library`` ops of the namespace ``gnncomm``."""

from lightning_gnncomm.kernels.ops import counter_uniform, one_bit_decode, one_bit_encode
from lightning_gnncomm.kernels.reference import one_bit_row_nbytes

__all__ = ["counter_uniform", "one_bit_decode", "one_bit_encode", "one_bit_row_nbytes"]
