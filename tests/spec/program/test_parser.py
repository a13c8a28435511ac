"""A command line that is wrong raises one line."""

import argparse
from pathlib import Path

import pytest

from spec.errors import CommandLineError
from spec.program.command import OneLineParser, decimal, whole


def parser() -> argparse.ArgumentParser:
    made = OneLineParser(prog="program")
    made.add_argument("--size", type=whole(1, 64))
    made.add_argument("--share", type=decimal(0.0, 1.0))
    made.add_argument("--name")
    made.add_argument_group("files").add_argument("--file", type=Path)
    made.add_argument("-g", "--gpus")
    made.add_argument("files", nargs="*")
    return made


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "65"], "argument --size: '65' is not a whole number from 1 to 64"),
        (["--size=--"], "argument --size: expected one argument"),
        (["--name=--"], "argument --name: expected one argument"),
        (["-g--"], "argument -g/--gpus: expected one argument"),
        (["--share", "1.1"], "argument --share: '1.1' is not a number from 0 to 1"),
        (["--file", ""], "argument --file: '' is no path"),
        (["--file", "a/" * 2048], f"argument --file: '{'a/' * 18}a...' is no path"),
        (["--file", "b" * 256], f"argument --file: '{'b' * 37}...' has a part longer than 255 bytes"),
        (["--siz=3"], "unrecognized arguments: --siz=3"),
        (["--nothing"], "unrecognized arguments: --nothing"),
    ],
)
def test_complaints_are_errors_of_one_line(words: list[str], said: str) -> None:
    with pytest.raises(CommandLineError) as caught:
        parser().parse_args(words)
    assert str(caught.value) == f"program: {said} (see --help)"
    assert "\n" not in str(caught.value)


def test_the_longest_name_is_a_path() -> None:
    assert parser().parse_args(["--file", "c" * 255]).file == Path("c" * 255)


def test_two_dashes_still_end_the_options() -> None:
    assert parser().parse_args(["--size", "3", "--", "--name"]).files == ["--name"]


def test_however_long_the_words_the_line_is_short() -> None:
    with pytest.raises(CommandLineError) as caught:
        parser().parse_args(["--" + "x" * 5000])
    assert len(str(caught.value)) < 500
