"""accelerate's own launcher on exported configurations; wants PyYAML and what accelerate itself requires.

    python accelerate_parser.py CHECKOUT < cases.json

Reads a list of exports, prints a list of {name, refused}: the configuration loaded (ClusterConfig), merged
into the arguments and checked (commands/launch.py, _validate_launch_command), the degrees multiplied out
(ParallelismConfig), and the plugin made of the environment that the launcher would set
(FullyShardedDataParallelPlugin).
"""

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(sys.argv[1]) / "src"))

from accelerate.commands.launch import _validate_launch_command, launch_command_parser  # type: ignore[import-not-found]
from accelerate.parallelism_config import ParallelismConfig  # type: ignore[import-not-found]
from accelerate.utils.dataclasses import FullyShardedDataParallelPlugin  # type: ignore[import-not-found]
from accelerate.utils.launch import prepare_multi_gpu_env  # type: ignore[import-not-found]
from cases import answer


def check(text: str, world: int) -> None:
    """Raises what accelerate raises, and ValueError for degrees that are not the world."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(text)
        launch(path, world)


def launch(path: Path, world: int) -> None:
    """What the launcher does with the file before it starts processes."""
    words = ["--config_file", str(path), "train.py"]
    options, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    if options.num_processes != world:
        raise ValueError(f"{options.num_processes} processes for {world} ranks")
    options.num_machines, options.main_process_ip = 1, "localhost"
    options.num_cpu_threads_per_process = 1
    before = dict(os.environ)
    try:
        os.environ.update(prepare_multi_gpu_env(options))
        if options.use_fsdp:
            FullyShardedDataParallelPlugin()
        if options.use_parallelism_config and ParallelismConfig().total_size != world:
            raise ValueError(f"{ParallelismConfig()} for {world} ranks")
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    answer(check)
