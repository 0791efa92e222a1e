"""A codec for each direction: which is taken for what, by name, by instance and from a mapping."""

import json
from typing import Any

import pytest
import torch
from jsonargparse import auto_cli

from lightning_gnncomm.codecs import (
    AdaptiveWidthCodec,
    Codec,
    DeltaSignCodec,
    IdentityCodec,
    KBitCodec,
    OneBitCodec,
    PerRoleCodec,
    RoundingKey,
    SlotStatistics,
    resolve_codec,
)
from lightning_gnncomm.slots import Role, Slot
from lightning_gnncomm.strategies import HaloStrategy

FORWARD = Slot("convs.0", "x")
BACKWARD = FORWARD.as_role(Role.GRADIENT)


def test_each_role_has_its_codec():
    codec = PerRoleCodec("one_bit", KBitCodec(4))
    assert isinstance(codec.for_slot(FORWARD), OneBitCodec)
    assert codec.for_slot(BACKWARD) is codec.gradient
    assert isinstance(codec.for_slot(FORWARD.as_role(Role.NORM)), IdentityCodec)
    assert isinstance(codec.for_slot(FORWARD.as_role(Role.CONSTANT)), IdentityCodec)
    assert codec.every is None
    assert codec.state_dict() == {}


def test_other_codecs_are_their_own_in_any_slot():
    codec = OneBitCodec()
    assert codec.for_slot(FORWARD) is codec.for_slot(BACKWARD) is codec
    assert not codec.is_delta


def test_one_direction_may_send_differences():
    codec = PerRoleCodec(DeltaSignCodec(), "8bit")
    assert codec.for_slot(FORWARD).is_delta
    assert not codec.for_slot(BACKWARD).is_delta


def test_it_nests():
    inner = PerRoleCodec("2bit", "4bit")
    codec = PerRoleCodec(inner, PerRoleCodec("identity", "8bit"))
    assert repr(codec.for_slot(FORWARD)) == "KBitCodec(bits=2)"
    assert repr(codec.for_slot(BACKWARD)) == "KBitCodec(bits=8)"


def test_a_codec_that_chooses_sees_its_own_role_and_is_resumed():
    def make() -> PerRoleCodec:
        return PerRoleCodec(AdaptiveWidthCodec(8.0, every=20), AdaptiveWidthCodec(1.0, every=50))

    codec = make()
    assert codec.every == 20
    codec.observe({FORWARD: SlotStatistics(10, 1.0), BACKWARD: SlotStatistics(10, 1.0)})
    state = codec.state_dict()
    assert [plain[-1] for plain, _ in state["feature"]["widths"]] == ["feature"]
    assert [width for _, width in state["gradient"]["widths"]] == [1]
    assert repr(codec.for_slot(FORWARD)) == "KBitCodec(bits=8)"
    resumed = make()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state


def test_it_encodes_nothing_itself():
    codec, rows = PerRoleCodec("one_bit", "4bit"), torch.rand(2, 3)
    with pytest.raises(TypeError, match=r"PerRoleCodec, which chooses one for each message: use for_slot\(slot\)"):
        codec.encode(rows, RoundingKey(0, torch.arange(2)))
    with pytest.raises(TypeError, match="for_slot"):
        codec.decode(torch.zeros(2, 5, dtype=torch.uint8), 3, torch.float32)
    with pytest.raises(TypeError, match="for_slot"):
        codec.row_nbytes(3, torch.float32)


@pytest.mark.parametrize("feature", ["one_bit", OneBitCodec()], ids=["name", "instance"])
def test_a_mapping_gives_one(feature: str | Codec):
    codec = resolve_codec({"feature": feature, "gradient": "4bit"})
    assert repr(codec) == "PerRoleCodec(feature=OneBitCodec(), gradient=KBitCodec(bits=4))"


@pytest.mark.parametrize(
    "mapping",
    [{"feature": "one_bit"}, {"feature": "one_bit", "gradients": "4bit"}, {}, {"features": "a", "gradient": "b"}],
)
def test_other_keys_are_refused(mapping: dict[str, str]):
    with pytest.raises(ValueError, match="'feature' and 'gradient' and nothing else, got"):
        resolve_codec(mapping)


def test_unknown_names_in_it_list_what_exists():
    with pytest.raises(ValueError, match=r"'4bit'.*got '3bit'"):
        resolve_codec({"feature": "one_bit", "gradient": "3bit"})


@pytest.mark.parametrize(
    "codec",
    [
        {"feature": "one_bit", "gradient": "4bit"},
        {"feature": {"class_path": "lightning_gnncomm.codecs.OneBitCodec"}, "gradient": "4bit"},
        {
            "class_path": "lightning_gnncomm.codecs.PerRoleCodec",
            "init_args": {"feature": "one_bit", "gradient": {"class_path": "KBitCodec", "init_args": {"bits": 4}}},
        },
    ],
    ids=["names", "a class in a mapping", "classes"],
)
def test_settings_in_yaml_can_say_it(codec: dict[str, Any]):
    def strategy_of(strategy: HaloStrategy) -> HaloStrategy:
        return strategy

    settings = {"class_path": "lightning_gnncomm.strategies.HaloStrategy", "init_args": {"codec": codec}}
    strategy = auto_cli(strategy_of, args=[json.dumps(settings)], exit_on_error=False)
    assert repr(strategy.codec) == "PerRoleCodec(feature=OneBitCodec(), gradient=KBitCodec(bits=4))"
