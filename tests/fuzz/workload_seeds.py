"""Questions to run_workload.py: SimAI files and what prices them, AICB's files, topologies."""

from pathlib import Path

import run_workload
from tests.fuzz.asked import Asked
from tests.fuzz.models import DENSE_TOML, GENERATE, ROOT, SHAPES, SMALL_TOML

BUSBW = (
    b"test\nTP:\nallreduce,: 300\nallgather,: 280\nDP:\nallreduce,: null\nallgather,: 380\nPP:\nbusbw: 47.5\n"
)
AIOB_RUN = ("--micro_batch", "1", "--seq_len", "2048", "--into", "i.pt")
SERVERS = ("-g_p_s", "8", "-n_p_s", "8", "-g_type", "H100")


def _made(folder: Path, name: str, *words: str) -> bytes:
    """A file that run_workload.py writes."""
    folder.mkdir(exist_ok=True)
    assert run_workload.main([word.replace("OUT", str(folder / name)) for word in words]) == 0
    return (folder / name).read_bytes()


def workloads(folder: Path) -> dict[str, Asked]:
    small = (
        *GENERATE,
        "--num_layers",
        "4",
        "--hidden_size",
        "512",
        "--num_attention_heads",
        "8",
        "--tp_num",
        "2",
    )
    timed = (*small, "--fixed_time_us", "2")
    simai = _made(folder, "w.txt", *timed, "--pp_num", "2", "--output", "OUT")
    aiob = _made(folder, "a.txt", *timed, "--write_aiob", "OUT", "--output", str(folder / "x.txt"))
    general = _made(folder, "g.csv", *small, "--format", "general", "--output", "OUT")
    arguments = (folder / "g.csv.args.json").read_bytes()
    topology = _made(folder, "topology", "topology", "-topo", "Spectrum-X", "-g", "16", "-o", "OUT")
    ratios = {
        f"ratio/{path.name}": path.read_bytes() for path in (ROOT / "configs" / "simai_ratio").glob("*.csv")
    }

    def ask(*words: str, **files: bytes) -> Asked:
        named = {name.replace("__", "."): content for name, content in files.items()}
        return Asked(program="workload", words=words, files=named)

    def simulated(*words: str, **files: bytes) -> Asked:
        return ask("simulate", "w.txt", *SERVERS, *words, w__txt=simai, **files)

    ratio = simulated("--ratio_dir", "ratio", "-r", "p")
    return {
        "check": ask("check", "w.txt", w__txt=simai),
        "simulate": simulated("--rows", "rows.csv", "--json", "s.json", "-dp_o", "0.2"),
        "replay": ask(
            *(
                "simulate",
                "-w",
                "w.txt",
                "--profile",
                "prof_data/data.pt",
                "--missing",
                "modelled",
                "--json",
                "s.json",
            ),
            w__txt=simai,
        ),
        "busbw": simulated("-busbw", "b.yaml", "-pp_o", "0.5", b__yaml=BUSBW),
        "ratio tables": Asked(program=ratio.program, words=ratio.words, files={**ratio.files, **ratios}),
        "AIOB file": ask(*small, "--comp_filepath", "a.txt", "--output", "o.txt", a__txt=aiob),
        "import-aiob": ask(
            *(
                "import-aiob",
                "a.txt",
                "--config",
                "model.toml",
                "--gpu",
                "H100",
                "--tp",
                "2",
                *AIOB_RUN,
            ),
            a__txt=aiob,
            model__toml=DENSE_TOML,
        ),
        "general workload": Asked(
            program="readers",
            words=("workload", "g.csv"),
            files={"g.csv": general, "g.csv.args.json": arguments},
        ),
        "topology file": ask(
            "topology", "--check", "t", "--write_cluster", "c.toml", "--cluster", "h100-sxm", t=topology
        ),
        "nemotron_h_56b config.json": ask(
            *(*GENERATE, "--config", "config.json", "--tp_num", "8", "--output", "o.txt"),
            config__json=(SHAPES / "nemotron_h_56b.json").read_bytes(),
        ),
        "generate of a config": ask(*GENERATE, "--config", "m.toml", "--output", "o.txt", m__toml=SMALL_TOML),
    }
