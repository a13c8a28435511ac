"""Good commands of every program, which the fuzzing spoils: one for each reader and each set of options."""

from pathlib import Path

from tests.fuzz.command import Command
from tests.fuzz.measured_seeds import measurements
from tests.fuzz.models import GENERATE, PLAN, PRICE
from tests.fuzz.search_seeds import searches
from tests.fuzz.workload_seeds import workloads

OPTIONS = {
    "workload groups": "groups --tp 2 --cp 2 --ep 2 --dp 4 --pp 2",
    "workload traffic": "traffic --tp 4 --dp 8 --group dp --collective all_reduce --size_bytes 1048576 --csv f.csv",
    "workload topology": "topology -topo AlibabaHPN -g 64 -asn 16 -psn 16 -o t",
    "workload generate moe": f"{GENERATE} --model_size moe --num_layers 4 --ep 8 --moe_router_topk 2 --output o.txt",
    "workload generate zero": f"{GENERATE} --frame DeepSpeed --stage 3 --model_size 7 --num_layers 4 --format general "
    "--output o.csv",
    "workload tests": "generate --test_comm all_to_all --world_size 16 --begin_size 1048576 --end_size 8388608 "
    "--output o.txt",
    "search 7B": f"--config configs/7B_internlm2.py {PRICE} --model_size 7 {PLAN}",
    "profile options": "--device cpu --output o.pt --only linear --max_size 1MiB --model configs/tiny_internlm2.py "
    "--tp 2",
}
"""Command lines without files; a name begins with its program."""


def seeds(folder: Path) -> dict[str, Command]:
    """Every command by its name; files that programs of ours write are written in ``folder``."""
    options = {name: Command(program=name.split()[0], words=tuple(words.split())) for name, words in OPTIONS.items()}
    return {**searches(), **workloads(folder), **measurements(folder), **options}
