"""Commands of python -m profdb and python -m solver.calibrate: what others measured, journals, profiles, steps."""

from pathlib import Path

from profdb.cases import GemmCase
from profdb.sample import Sample
from profdb.store.case_file import WeighedCase, write_cases
from profdb.store.data_file import save_profile
from profiler.journal import Journal
from tests.fuzz.command import Command
from tests.profdb.importers.test_nccl_tests import GOOD as NCCL_LOG
from tests.profdb.profiles import collective_samples, gemm_samples, profile

CURVES = {
    "gemm": b"gpu,m,n,k,dtype,latency_us,framework,flag\nX,4,5,6,bf16,2.5,lib,\nX,4,5,7,bf16,9,lib,\n",
    "comm": b"gpu,collective,dtype,num_gpus,bytes,latency_us\nX,all_reduce,bf16,8,1048576,40\nX,all_gather,bf16,8,4096,9\n",
    "attention": b"gpu,batch,seq,heads,kv_heads,head_dim,latency_us,dtype\nX,1,4096,32,8,128,250,bf16\n",
}
TRACE = (
    b'{"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": [\n'
    b'{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 1.0, "dur": 90000.0},\n'
    b'{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5.5, "dur": 900,'
    b' "args": {"External id": 3, "Input Dims": [[256, 256], [256, 512]], "Input type": ["float", "float"]}},\n'
    b'{"ph": "X", "cat": "kernel", "name": "nvjet_tst_64x8", "pid": 0, "tid": 7, "ts": 30, "dur": 700,'
    b' "args": {"External id": 3, "stream": 7}},\n'
    b'{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "pid": 0, "tid": 9, "ts": 800,'
    b' "dur": 50, "args": {"Collective name": "allreduce", "In msg nelems": 64, "Group size": 2, "dtype": "Float"}}]}\n'
)
STEPS = b"""config,world_size,global_batch,measured_step_s,plan
configs/7B_internlm2.py,128,4194304,6.0,"strategy=fsp,tp=2"
configs/7B_internlm2.py,128,4194304,6.9,"strategy=fsp,tp=4"
configs/7B_internlm2.py,128,4194304,7.2,"strategy=fsp,tp=4,pp=2"
"""


def measurements(folder: Path) -> dict[str, Command]:
    """Commands by their name; their files are written in ``folder`` first."""
    measured = profile([*gemm_samples(), *collective_samples()])
    save_profile(folder / "small.pt", measured)
    small = (folder / "small.pt").read_bytes()
    journal = Journal.open(folder / "j", "H100")
    for m in (64, 128):
        journal.append(Sample(case=GemmCase(m=m, k=64, n=64), trials_s=(1e-5, 2e-5)))
    journal.close()

    cases = [GemmCase(m=8, k=16, n=32), GemmCase(m=16, k=16, n=32, layout="TN")]
    write_cases(folder / "c.json", [WeighedCase(case=one, seconds=0.5) for one in cases], {"rows": 1})

    def ask(program: str, words: str, **files: bytes) -> Command:
        return Command(program=program, words=tuple(words.split()), files=files)

    def take(form: str, source: str, gpu: str, files: dict[str, bytes]) -> Command:
        return ask("profdb", f"import {form} {source} --gpu {gpu} --into into.pt", **files)

    curves = {f"{kind} csv": take("csv", "x.csv", "X", {"x.csv": text}) for kind, text in CURVES.items()}
    compare = "compare t.json --config configs/tiny_internlm2.py --plan micro_batch=1 --cluster h100-sxm"
    return curves | {
        "nccl-tests": take("nccl-tests", "log", "H100", {"log": NCCL_LOG.encode()}),
        "journal": take("journal", "j", "H100", {"j": (folder / "j").read_bytes()}),
        "import into": take("csv", "x.csv", "Testchip", {"x.csv": CURVES["gemm"], "into.pt": small}),
        "show": ask("profdb", "show a.pt --json", **{"a.pt": small}),
        "merge": ask("profdb", "merge a.pt b.pt --into c.pt", **{"a.pt": small, "b.pt": small}),
        "cases": ask(
            "profile",
            "--device cpu --dry_run --cases c.json --output o.pt",
            **{"c.json": (folder / "c.json").read_bytes()},
        ),
        "trace": ask("workload", f"{compare} --missing modelled --json g.json", **{"t.json": TRACE}),
        "calibrate": ask("calibrate", "--steps s.csv --out c.json", **{"s.csv": STEPS}),
    }
