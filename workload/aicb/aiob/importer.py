"""``run_workload.py import-aiob``: AICB's module times into a profile.

The text file names neither model nor GPU nor degrees, so all of them are options; which operation a section
stands for is profdb.importers.aiob's to say.
"""

import argparse
from pathlib import Path

from profdb.commands.import_export import canonical_gpu, import_lines
from profdb.importers.aiob import AiobRun, ModuleTime, module_samples
from profdb.sample import MachineFacts, ProfileDatabase
from spec.program.limits import MOST_COUNT, MOST_GPUS, MOST_SEQUENCE_TOKENS
from spec.program.parser import whole
from spec.readers.config_flags import add_config, assumed_lines
from spec.readers.read_config import read_config
from workload.aicb.aiob.text import read_aiob
from workload.workload_error import WorkloadError


def add_import_aiob(verb: argparse.ArgumentParser) -> None:
    """All options of the verb."""
    verb.add_argument("file", type=Path, help="AICB's text file of module times (microseconds)")
    add_config(verb, "model that was timed", required=True)
    verb.add_argument(
        "--gpu", required=True, help="GPU of the times, by any name that a sheet or the profile gives it"
    )
    verb.add_argument("--cluster", default="", help="sheet in configs/clusters, for a new profile")
    verb.add_argument("--tp", type=whole(1, MOST_GPUS), required=True, help="tensor-parallel ranks")
    verb.add_argument(
        "--micro_batch", type=whole(1, MOST_COUNT), required=True, help="sequences a micro-batch"
    )
    verb.add_argument(
        "--seq_len", type=whole(1, MOST_SEQUENCE_TOKENS), required=True, help="tokens a sequence"
    )
    verb.add_argument("--into", type=Path, required=True, help="profile to merge into, made when absent")


def import_aiob(options: argparse.Namespace) -> list[str]:
    """Merge the file's sections into the profile; lines that say what was done. A UserError leaves the
    profile as it was."""
    model = read_config(options.config, assume=options.assume).model
    run = AiobRun(
        model=model,
        tp=options.tp,
        micro_batch=options.micro_batch,
        seq_len=options.seq_len,
    )
    times = {
        name: ModuleTime(avg_us=time.avg_us, min_us=time.min_us, max_us=time.max_us)
        for name, time in read_aiob(options.file).sections.items()
    }
    samples, left = module_samples(times, run)
    if not samples:
        raise WorkloadError(f"{options.file}: no section that stands for an operation; nothing imported")
    gpu, sheet = canonical_gpu(options.gpu, options.file)
    machine = MachineFacts(gpu=gpu, cluster=options.cluster or sheet)
    lines = import_lines(options.into, ProfileDatabase(machine=machine, samples=samples))
    return (
        assumed_lines(model)
        + lines
        + ([f"not imported, no single operation: {', '.join(left)}"] if left else [])
    )
