"""torchtitan's own configuration manager on exported modules; wants what torchtitan itself requires.

    python torchtitan_parser.py CHECKOUT < cases.json

Reads a list of exports, prints a list of {name, refused}: the module found and its function called (ConfigManager), the
configuration checked (Trainer.Config), degrees multiplied out (ParallelDims), the model told of them
(``update_from_config``), and every module of the pipeline's stages named once.
"""

import importlib
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, sys.argv[1])

from cases import answer
from torchtitan.config import ConfigManager  # type: ignore[import-not-found]
from torchtitan.distributed import ParallelDims  # type: ignore[import-not-found]


def check(text: str, world: int) -> None:
    """Raises what torchtitan raises, and ValueError for tokens or stages that do not come out."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "exported_plan.py").write_text(text)
        sys.path.insert(0, folder)
        sys.modules.pop("exported_plan", None)
        importlib.invalidate_caches()
        try:
            configure(world)
        finally:
            sys.path.remove(folder)


def configure(world: int) -> None:
    """What the trainer does with the module before it builds the model."""
    config = ConfigManager().parse_args(["--module", "exported_plan", "--config", "plan"])
    config.__post_init__()
    degrees = ParallelDims.from_config(config.parallelism, world)
    config.model_spec.model.update_from_config(config=config)
    ranks = degrees.dp_replicate * degrees.dp_shard
    at_once = config.training.num_tokens_per_microbatch_per_dp_rank * ranks
    if config.parallelism.pipeline_parallel_degree > 1:
        at_once *= config.parallelism.num_pp_microbatches
        named = [one for part in config.parallelism.module_fqns_per_model_part for one in part]
        layers = [f"layers.{index}" for index in range(len(config.model_spec.model.layers))]
        if named != ["tok_embeddings", *layers, "norm", "lm_head"]:
            raise ValueError(f"stages of {named}")
    if config.training.num_tokens_per_train_step % at_once:
        raise ValueError(f"{config.training.num_tokens_per_train_step} tokens, {at_once} at once")


if __name__ == "__main__":
    answer(check)
