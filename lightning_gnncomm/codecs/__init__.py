"""Codecs: how the rows of a message become bytes. Importing this package enters them all in :data:`CODECS`."""

from lightning_gnncomm.codecs.base import CODECS, Codec, RoundingKey, resolve_codec
from lightning_gnncomm.codecs.identity import IdentityCodec
from lightning_gnncomm.codecs.one_bit import OneBitCodec

__all__ = ["CODECS", "Codec", "IdentityCodec", "OneBitCodec", "RoundingKey", "resolve_codec"]
