"""InternEvo's own checks on exported configs; a program, for it stands in for much of the machine.

    python internevo_parser.py CHECKOUT < cases.json

Reads a list of exports, prints a list of {name, refused}: Config.from_file, args_sanity_check
(internlm/initialize/launch.py), and whether the class of the model type takes the keys of ``model`` that
create_model (internlm/model/builder.py) hands it.
"""

import contextlib
import importlib
import inspect
import io
import json
import sys
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

import torch
import torch._dynamo  # finds out whether triton is there, before a stand-in is

sys.path.insert(0, str(Path(__file__).resolve().parent))
from stand_ins import MISSING, Finder

# the sections that are the user's, as InternEvo's configs/7B_internlm2.py has them
OWN = """
JOB_NAME = "handover"
ckpt = dict(enable_save_ckpt=False)
grad_scaler = dict(fp16=dict(initial_scale=2**16))
loss = dict(label_smoothing=0)
adam = dict(lr=1e-4)
lr_scheduler = dict(total_steps=1)
beta2_scheduler = dict(init_beta2=0.95, c=0, cur_iter=-1)
monitor = dict(alert=dict(enable_feishu_alert=False, feishu_alert_address=None))
"""
# popped or set by create_model and pipeline_parallel_sharding_wrapper before the class is called
BUILDERS = frozenset({"num_chunks", "use_flash_attn", "apply_post_layer_norm", "embed_split_hidden"})


class Handed:
    """The modules of one checkout."""

    def __init__(self, checkout: Path) -> None:
        sys.meta_path.insert(0, Finder(MISSING))  # before a folder of the checkout is taken for one of them
        sys.path.insert(0, str(checkout))
        torch.cuda.is_available = lambda: True
        self.launch: ModuleType = importlib.import_module("internlm.initialize.launch")
        self.context: ModuleType = importlib.import_module("internlm.core.context")
        self.registry: ModuleType = importlib.import_module("internlm.model.registry")
        if not self.registry.model_initializer.has("LLAMA2"):
            self.registry.register_model_initializer()

    def check(self, path: Path, data_parallel: int) -> None:
        """Load, check and look the model up; raises what InternEvo raises."""
        shared = self.context.global_context
        shared.load_config(self.context.Config.from_file(str(path)))
        shared.is_rank_for_log = lambda: True
        shared.get_world_size = lambda mode: data_parallel
        self.launch.args_sanity_check()
        model = dict(shared.config.model)
        model.pop("apply_post_layer_norm")  # required: create_model has no default
        built = self.registry.model_initializer.get_module(module_name=shared.config.model_type)
        keys = {key: value for key, value in model.items() if key not in BUILDERS}
        # it defaults all keys: what it takes is what its signature names
        inspect.signature(built.__init__).bind(None, **keys)


def refusal(handed: Handed, text: str, data_parallel: int) -> str | None:
    """The first line of what InternEvo says against the config, or None."""
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.py"
        path.write_text(OWN + text)
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                handed.check(path, data_parallel)
        except (
            AssertionError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            NameError,
            SyntaxError,
        ) as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


def main() -> None:
    """Every export of standard input."""
    warnings.simplefilter("ignore")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        handed = Handed(Path(sys.argv[1]))
    cases = json.load(sys.stdin)
    print(json.dumps([{"name": case["name"], "refused": refusal(handed, case["text"], 2)} for case in cases]))


if __name__ == "__main__":
    main()
