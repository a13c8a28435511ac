"""Running ``generate`` in tests: the options as parsed, and what they make."""

import argparse
from pathlib import Path

import run_workload
from workload.aicb.generator import GeneratorInput, generator_input
from workload.verbs import parser

ROOT = Path(run_workload.__file__).parent


def options(words: str) -> argparse.Namespace:
    """The parsed options of ``generate words``."""
    return parser().parse_args(["generate", *words.split()])


def made(words: str) -> GeneratorInput:
    """What ``generate words`` would write."""
    return generator_input(options(words), ROOT)
