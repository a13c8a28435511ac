"""torchtitan's own configuration manager on exported modules; wants what torchtitan itself requires.

    python torchtitan_parser.py CHECKOUT < cases.json

Reads a list of exports, prints a list of {name, refused}: the module found and its function called (ConfigManager), the
configuration checked (Trainer.Config), degrees multiplied out (ParallelDims), the model told of them
(``update_from_config``), and every module of the pipeline's stages named once.
"""

import importlib
import json
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from torchtitan.config import ConfigManager  # type: ignore[import-not-found]
from torchtitan.distributed import ParallelDims  # type: ignore[import-not-found]


def check(world: int) -> None:
    """Raises what torchtitan raises, and ValueError for tokens or stages that do not come out."""
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


def refusal(text: str, world: int) -> str | None:
    """The first line of what torchtitan says against the module, or None."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "exported_plan.py").write_text(text)
        sys.path.insert(0, folder)
        sys.modules.pop("exported_plan", None)
        importlib.invalidate_caches()
        try:
            check(world)
        except (
            AssertionError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            ImportError,
            NotImplementedError,
            SystemExit,
        ) as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        finally:
            sys.path.remove(folder)
    return None


def main() -> None:
    """Every export of standard input."""
    warnings.simplefilter("ignore")
    cases = json.load(sys.stdin)
    print(json.dumps([{"name": one["name"], "refused": refusal(one["text"], one["world"])} for one in cases]))


if __name__ == "__main__":
    main()
