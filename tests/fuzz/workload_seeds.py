"""Commands of run_workload.py: SimAI files and what prices them, AICB's files, topologies."""

from pathlib import Path

import run_workload
from tests.fuzz.command import Command
from tests.fuzz.models import DENSE_TOML, GENERATE, ROOT, SHAPES, SMALL_TOML

BUSBW = b"test\nTP:\nallreduce,: 300\nallgather,: 280\nDP:\nallreduce,: null\nallgather,: 380\nPP:\nbusbw: 47.5\n"
SERVERS = "-g_p_s 8 -n_p_s 8 -g_type H100"
SMALL = f"{GENERATE} --num_layers 4 --hidden_size 512 --num_attention_heads 8 --tp_num 2"


def _write(folder: Path, name: str, words: str) -> bytes:
    """The file OUT that run_workload.py writes."""
    folder.mkdir(exist_ok=True)
    assert run_workload.main([word.replace("OUT", str(folder / name)) for word in words.split()]) == 0
    return (folder / name).read_bytes()


def workloads(folder: Path) -> dict[str, Command]:
    """Commands by their name."""
    timed = f"{SMALL} --fixed_time_us 2"
    simai = _write(folder, "w.txt", f"{timed} --pp_num 2 --output OUT")
    aiob = _write(folder, "a.txt", f"{timed} --write_aiob OUT --output {folder / 'x.txt'}")
    general = _write(folder, "g.csv", f"{SMALL} --format general --output OUT")
    arguments = (folder / "g.csv.args.json").read_bytes()
    topology = _write(folder, "topology", "topology -topo Spectrum-X -g 16 -o OUT")
    ratios = {f"ratio/{path.name}": path.read_bytes() for path in (ROOT / "configs" / "simai_ratio").glob("*.csv")}

    def ask(words: str, files: dict[str, bytes], program: str = "workload") -> Command:
        return Command(program=program, words=tuple(words.split()), files=files)

    def simulate(words: str, files: dict[str, bytes]) -> Command:
        return ask(f"simulate w.txt {SERVERS} {words}", {"w.txt": simai, **files})

    nemotron = (SHAPES / "nemotron_h_56b.json").read_bytes()
    return {
        "check": ask("check w.txt", {"w.txt": simai}),
        "simulate": simulate("--rows rows.csv --json s.json -dp_o 0.2", {}),
        "replay": ask(
            "simulate -w w.txt --profile prof_data/data.pt --missing modelled --json s.json", {"w.txt": simai}
        ),
        "busbw": simulate("-busbw b.yaml -pp_o 0.5", {"b.yaml": BUSBW}),
        "ratio tables": simulate("--ratio_dir ratio -r p", ratios),
        "AIOB file": ask(f"{SMALL} --comp_filepath a.txt --output o.txt", {"a.txt": aiob}),
        "import-aiob": ask(
            "import-aiob a.txt --config model.toml --gpu H100 --tp 2 --micro_batch 1 --seq_len 2048 --into i.pt",
            {"a.txt": aiob, "model.toml": DENSE_TOML},
        ),
        "general workload": ask("workload g.csv", {"g.csv": general, "g.csv.args.json": arguments}, program="readers"),
        "topology file": ask("topology --check t --write_cluster c.toml --cluster h100-sxm", {"t": topology}),
        "nemotron_h_56b config.json": ask(
            f"{GENERATE} --config config.json --tp_num 8 --output o.txt", {"config.json": nemotron}
        ),
        "generate of a config": ask(f"{GENERATE} --config m.toml --output o.txt", {"m.toml": SMALL_TOML}),
    }
