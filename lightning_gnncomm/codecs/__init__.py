"""Codecs: how the rows of a message become bytes. Importing this package enters them all in :data:`CODECS`."""

from lightning_gnncomm.codecs.adaptive import AdaptiveWidthCodec
from lightning_gnncomm.codecs.base import CODECS, ChoosingCodec, Codec, RoundingKey, SlotStatistics, resolve_codec
from lightning_gnncomm.codecs.delta_sign import DeltaSignCodec
from lightning_gnncomm.codecs.identity import IdentityCodec
from lightning_gnncomm.codecs.k_bit import KBitCodec
from lightning_gnncomm.codecs.one_bit import OneBitCodec
from lightning_gnncomm.codecs.per_role import PerRoleCodec
from lightning_gnncomm.codecs.threshold import ThresholdCodec

__all__ = [
    "CODECS",
    "AdaptiveWidthCodec",
    "ChoosingCodec",
    "Codec",
    "DeltaSignCodec",
    "IdentityCodec",
    "KBitCodec",
    "OneBitCodec",
    "PerRoleCodec",
    "RoundingKey",
    "SlotStatistics",
    "ThresholdCodec",
    "resolve_codec",
]
