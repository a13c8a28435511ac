"""How fast a checkout of Calculon (github.com/calculon-ai/calculon, arXiv 2312.10136) tries plans of GPT-3 175B."""

import sys
import time
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

from spec.errors import ConfigError

WORLD, SEQUENCES = 1024, 1536
LEAST_CPU_S = 20.0
"""CPU seconds after which no further group of plans is begun; a rate over so many varies by a few per cent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Plans that were ``tried``, of which ``priced`` fitted and broke no rule, in ``cpu_s``."""

    tried: int
    priced: int
    cpu_s: float


def files_of(checkout: Path) -> tuple[Path, Path]:
    """The model's and the system's file of a checkout; ConfigError where it has none."""
    application, system = checkout / "models" / "gpt3-175B.json", checkout / "systems" / "a100_80g.json"
    if not application.is_file() or not system.is_file():
        raise ConfigError(
            where="--calculon",
            key="folder",
            value=str(checkout),
            allowed="a checkout of calculon-ai/calculon",
        )
    return application, system


def calculon_rate(checkout: Path) -> Tried:
    """Let its own search for the best plan (llm/optimal_execution.py) go through tensor and pipeline degrees on 1,024
    A100; its model's and its system's files are its own.

    Raises ConfigError for a folder without them.
    """
    application, system = files_of(checkout)
    sys.path.insert(0, str(checkout))
    # Asked for a default number of processes alone.
    counting = ModuleType("psutil")
    counting.cpu_count = lambda logical: 1  # type: ignore[attr-defined]
    sys.modules.setdefault("psutil", counting)
    calculon: Any = import_module("calculon")
    llm: Any = import_module("calculon.llm")
    app = llm.Llm.Application(calculon.io.read_json_file(str(application)))
    machine = calculon.System(calculon.io.read_json_file(str(system)))
    tried = priced = 0
    began = time.process_time()
    for tp, pp, recompute, sharding in product(
        (8, 4, 2), (8, 4, 16), ("full", "attn_only", "none"), (True, False)
    ):
        for chunks in (1, 2, 3):
            plan = (tp, pp, WORLD // (tp * pp), chunks, SEQUENCES, recompute, sharding, "rs_ag")
            _, seen, good, *_ = llm.OptimalExecution.search(
                False, 1, False, WORLD, SEQUENCES, "float16", app, machine, *plan, (True,), False, True, True
            )
            tried, priced = tried + seen, priced + good
            if time.process_time() - began > LEAST_CPU_S:
                return Tried(tried=tried, priced=priced, cpu_s=time.process_time() - began)
    return Tried(tried=tried, priced=priced, cpu_s=time.process_time() - began)
