"""A table read off a dataclass, and values read by it."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest

from spec.errors import ConfigError
from spec.program.kinds import Flag, Number, Several, Whole, Word
from spec.section import Section
from spec.settings.job import job_settings
from spec.settings.setting import Column, parse_settings, section_values, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    kind: Literal["diesel", "petrol"] = "diesel"
    """What it
    burns."""
    turbo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Car:
    name: str
    engine: Engine = field(default_factory=Engine)
    doors: Annotated[int | None, Whole(most=5), Column()] = None
    """Doors."""
    load: Annotated[float, Number(least=0, most=1)] = 0.5
    extras: tuple[Literal["radio", "hook"], ...] = ()


CAR = settings_of(Car)


def test_fields_say_their_kinds_and_groups_stand_before_a_dot() -> None:
    assert {key: type(one.kind) for key, one in CAR.items()} == {
        "engine.kind": Word,
        "engine.turbo": Flag,
        "doors": Whole,
        "load": Number,
        "extras": Several,
    }
    assert CAR["engine.kind"].meaning == "What it burns."
    assert (CAR["doors"].column, CAR["load"].column) == (True, False)
    assert (CAR["doors"].default, CAR["load"].default, CAR["extras"].default) == (None, 0.5, ())


def test_typed_values_have_their_types() -> None:
    values = parse_settings(" engine.turbo=true, doors=3,extras=hook+radio ,", CAR, "--car")
    assert values == {"engine.turbo": True, "doors": 3, "extras": ("radio", "hook")}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "car"),
        (" ,", "car"),
        ("doors", "doors"),
        ("doors=", "doors"),
        ("doors=6", "doors"),
        ("doors=3,doors=3", "doors"),
        ("name=x", "name"),
        ("engine=diesel", "engine"),
    ],
)
def test_what_cannot_be_meant_is_one_line(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_settings(text, CAR, "--car")
    assert (refused.value.where, refused.value.key) == ("--car", key)
    assert "\n" not in str(refused.value)


def test_an_error_says_what_is_allowed_and_what_the_key_means() -> None:
    with pytest.raises(ConfigError, match=r"a whole number from 1 to 5 \(Doors\.\)"):
        CAR["doors"].read("six", "--car")
    with pytest.raises(ConfigError, match="<list>"):
        CAR["doors"].accept([1, 2], "a file")


def test_a_section_is_read_by_the_table() -> None:
    section = Section(where="car.toml", name="car", values={"doors": 4, "load": 1})
    assert section_values(section, CAR) == {"doors": 4, "load": 1.0}
    section.close()
    wrong = Section(where="car.toml", name="car", values={"doors": 4.0})
    with pytest.raises(ConfigError, match=r"car\.doors"):
        section_values(wrong, CAR)


def test_an_unknown_key_of_a_long_table_is_answered_with_the_likeliest() -> None:
    with pytest.raises(ConfigError, match=r"such as precision\.gradient\b"):
        parse_settings("gradient=bf16", job_settings(), "--job")
    with pytest.raises(ConfigError, match=r"a key of the table in docs/configs\.md$"):
        parse_settings("zzzz=1", job_settings(), "--job")
