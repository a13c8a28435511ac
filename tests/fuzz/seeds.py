"""Good questions to every program, which the fuzzing spoils: one for each reader and each set of options."""

from pathlib import Path

from tests.fuzz.asked import Asked
from tests.fuzz.measured_seeds import measurements
from tests.fuzz.models import GENERATE, PRICE, TYPED
from tests.fuzz.search_seeds import searches
from tests.fuzz.workload_seeds import workloads


def seeds(folder: Path) -> dict[str, Asked]:
    """Every question by its name; files that programs of ours write are written in ``folder``."""
    return {**searches(), **workloads(folder), **measurements(folder), **_options()}


def _options() -> dict[str, Asked]:
    """Command lines without files."""
    asked: dict[str, tuple[str, ...]] = {
        "workload groups": ("groups", "--tp", "2", "--cp", "2", "--ep", "2", "--dp", "4", "--pp", "2"),
        "workload traffic": (
            *("traffic", "--tp", "4", "--dp", "8", "--group", "dp", "--collective", "all_reduce"),
            *("--size_bytes", "1048576", "--csv", "f.csv"),
        ),
        "workload topology": (
            "topology",
            "-topo",
            "AlibabaHPN",
            "-g",
            "64",
            "-asn",
            "16",
            "-psn",
            "16",
            "-o",
            "t",
        ),
        "workload generate moe": (
            *(*GENERATE, "--model_size", "moe", "--num_layers", "4", "--ep", "8", "--moe_router_topk", "2"),
            *("--output", "o.txt"),
        ),
        "workload generate zero": (
            *(*GENERATE, "--frame", "DeepSpeed", "--stage", "3", "--model_size", "7", "--num_layers", "4"),
            *("--format", "general", "--output", "o.csv"),
        ),
        "workload tests": (
            *("generate", "--test_comm", "all_to_all", "--world_size", "16", "--begin_size", "1048576"),
            *("--end_size", "8388608", "--output", "o.txt"),
        ),
        "search 7B": ("--config", "configs/7B_internlm2.py", *PRICE, "--model_size", "7", *TYPED),
        "profile options": (
            "--device",
            "cpu",
            "--output",
            "o.pt",
            "--only",
            "linear",
            "--max_size",
            "1MiB",
            "--model",
            "configs/tiny_internlm2.py",
            "--tp",
            "2",
        ),
    }
    return {name: Asked(program=name.split()[0], words=words) for name, words in asked.items()}
