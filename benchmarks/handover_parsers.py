"""Frameworks' own parsers on exports. It is a program of its own because it stubs out much of the machine.

    python handover_parsers.py FRAMEWORK CHECKOUT < cases.json

FRAMEWORK is megatron, internevo, accelerate or torchtitan. Reads a list of exports and prints a list of {name, refused}:
the first line of the error that the checkout's code raises, or null. accelerate and torchtitan need their requirements
installed; the others get stubs for CUDA and for missing packages that a parser does not need.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import io
import json
import os
import sys
import tempfile
import types
import typing
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

Check = Callable[[str, int], None]
"""Parses an export's text for a number of ranks; raises what the framework raises."""

REFUSED = (
    AssertionError,
    ValueError,
    RuntimeError,
    TypeError,
    KeyError,
    AttributeError,
    NameError,
    SyntaxError,
    ImportError,
    SystemExit,
)
"""Errors by which frameworks refuse a configuration."""
SOME_GPU = SimpleNamespace(major=9, minor=0, name="GPU", total_memory=80 * 2**30, multi_processor_count=132)
MISSING = frozenset(
    str.split(
        "six triton regex sentencepiece tiktoken transformers psutil h5py wandb flash_attn einops tensorstore zarr "
        "nltk yaml pybind11 apex tensorboard boto3 botocore oss2 tos numa pynvml rotary_emb pyecharts py_spy "
        "megablocks stk torch_scatter libcst cupy opentelemetry grouped_gemm fused_dense_lib xentropy_cuda_lib "
        "hjson msgpack cpuinfo ninja comet_ml pkg_resources pulp viztracer requests safetensors datasets"
    )
)
"""Packages that no parser needs for its work."""
# Sections of a config that exports leave to the user, as in InternEvo's configs/7B_internlm2.py.
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
DATA_PARALLEL = 2
# Keys that create_model and pipeline_parallel_sharding_wrapper pop or set before the class is called.
BUILDERS = frozenset({"num_chunks", "use_flash_attn", "apply_post_layer_norm", "embed_split_hidden"})


class Anything:
    """Accepts every call, attribute and item; as a decorator it returns the decorated function."""

    def __init__(self, *arguments: object, **named: object) -> None:
        del arguments, named

    def __call__(self, *arguments: object, **named: object) -> object:
        """The decorated function, or another Anything."""
        if len(arguments) == 1 and callable(arguments[0]) and not named:
            return arguments[0]
        return Anything()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(self, key: object) -> object:
        return Anything()

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return (object,)


class StubModule(types.ModuleType):
    """A stub of a module or package, which has every name."""

    __version__ = "0"

    def __init__(self, name: str, folders: Sequence[str] = ()) -> None:
        super().__init__(name)
        self.__path__ = list(folders)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Anything,), {}) if name[:1].isupper() else Anything()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stubs for the packages of ``names`` that are not installed."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(name for name in names if importlib.util.find_spec(name) is None)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for the package and everything in it."""
        del path, target
        if fullname.partition(".")[0] not in self._names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """The stub."""
        return StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def stub_cuda(checkout: Path) -> None:
    """Let the checkout's modules be imported on a machine without a GPU."""
    import torch
    import torch._dynamo  # looks for triton, before there is a stub of it

    sys.meta_path.insert(0, Finder(MISSING))  # before a folder of the checkout can be mistaken for one of them
    sys.path.insert(0, str(checkout))
    if not hasattr(typing, "override"):  # Python 3.12
        typing.override = lambda function: function  # type: ignore[attr-defined]
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[assignment]
    torch.cuda.get_device_properties = lambda *_: SOME_GPU  # type: ignore[assignment]


def megatron(checkout: Path) -> Check:
    """parse_args, validate_args and the TransformerConfig built from them (megatron/training/arguments.py,
    core_transformer_config_from_args)."""
    stub_cuda(checkout)
    # Without the code of megatron/training/__init__.py.
    sys.modules["megatron.training"] = StubModule("megatron.training", [str(checkout / "megatron" / "training")])
    arguments = importlib.import_module("megatron.training.arguments")
    # Options that exports leave to the user, and one for kernels of Transformer Engine, which is not installed.
    own = ["--no-rope-fusion", "--train-iters", "1", "--lr", "1e-4", "--mock-data"]
    own += ["--tokenizer-type", "NullTokenizer"]

    def check(text: str, world: int) -> None:
        flags = [word for line in text.splitlines() if not line.startswith("#") for word in line.split()]
        sys.argv = ["pretrain_gpt.py", *flags, *own]
        os.environ |= {"WORLD_SIZE": str(world), "RANK": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
        arguments.core_transformer_config_from_args(arguments.validate_args(arguments.parse_args()))

    return check


def internevo(checkout: Path) -> Check:
    """Config.from_file, args_sanity_check (internlm/initialize/launch.py), and whether the class of the model type
    takes the keys of ``model`` that create_model (internlm/model/builder.py) hands it."""
    stub_cuda(checkout)
    launch = importlib.import_module("internlm.initialize.launch")
    context = importlib.import_module("internlm.core.context")
    registry = importlib.import_module("internlm.model.registry")
    if not registry.model_initializer.has("LLAMA2"):
        registry.register_model_initializer()

    def check(text: str, world: int) -> None:
        shared = context.global_context
        shared.load_config(context.Config.from_file(write_temporary("config.py", OWN + text)))
        shared.is_rank_for_log = lambda: True
        shared.get_world_size = lambda mode: DATA_PARALLEL
        launch.args_sanity_check()
        model = dict(shared.config.model)
        model.pop("apply_post_layer_norm")  # required: create_model has no default
        built = registry.model_initializer.get_module(module_name=shared.config.model_type)
        keys = {key: value for key, value in model.items() if key not in BUILDERS}
        # Calling it would build the model; its signature tells which keys it accepts.
        inspect.signature(built.__init__).bind(None, **keys)

    return check


def accelerate(checkout: Path) -> Check:
    """The configuration loaded (ClusterConfig), merged into the arguments and checked (commands/launch.py,
    _validate_launch_command), the degrees multiplied out (ParallelismConfig), and the plugin made of the environment
    that the launcher would set (FullyShardedDataParallelPlugin)."""
    sys.path.insert(0, str(checkout / "src"))
    command = importlib.import_module("accelerate.commands.launch")
    degrees = importlib.import_module("accelerate.parallelism_config")
    plugins = importlib.import_module("accelerate.utils.dataclasses")
    environment = importlib.import_module("accelerate.utils.launch")

    def check(text: str, world: int) -> None:
        words = ["--config_file", write_temporary("config.yaml", text), "train.py"]
        options, _, _ = command._validate_launch_command(command.launch_command_parser().parse_args(words))
        if options.num_processes != world:
            raise ValueError(f"{options.num_processes} processes for {world} ranks")
        options.num_machines, options.main_process_ip = 1, "localhost"
        options.num_cpu_threads_per_process = 1
        before = dict(os.environ)
        try:
            os.environ.update(environment.prepare_multi_gpu_env(options))
            if options.use_fsdp:
                plugins.FullyShardedDataParallelPlugin()
            if options.use_parallelism_config and degrees.ParallelismConfig().total_size != world:
                raise ValueError(f"{degrees.ParallelismConfig()} for {world} ranks")
        finally:
            os.environ.clear()
            os.environ.update(before)

    return check


def torchtitan(checkout: Path) -> Check:
    """The module found and its function called (ConfigManager), the configuration checked (Trainer.Config), degrees
    multiplied out (ParallelDims), the model given them (``update_from_config``), and every module of the pipeline's
    stages named once."""
    sys.path.insert(0, str(checkout))
    manager = importlib.import_module("torchtitan.config").ConfigManager
    parallel_dims = importlib.import_module("torchtitan.distributed").ParallelDims

    def check(text: str, world: int) -> None:
        folder = str(Path(write_temporary("exported_plan.py", text)).parent)
        sys.path.insert(0, folder)
        sys.modules.pop("exported_plan", None)
        importlib.invalidate_caches()
        try:
            configure(world)
        finally:
            sys.path.remove(folder)

    def configure(world: int) -> None:
        config = manager().parse_args(["--module", "exported_plan", "--config", "plan"])
        config.__post_init__()
        degrees = parallel_dims.from_config(config.parallelism, world)
        config.model_spec.model.update_from_config(config=config)
        at_once = config.training.num_tokens_per_microbatch_per_dp_rank
        at_once *= degrees.dp_replicate * degrees.dp_shard
        if config.parallelism.pipeline_parallel_degree > 1:
            at_once *= config.parallelism.num_pp_microbatches
            names = [one for part in config.parallelism.module_fqns_per_model_part for one in part]
            layers = [f"layers.{index}" for index in range(len(config.model_spec.model.layers))]
            if names != ["tok_embeddings", *layers, "norm", "lm_head"]:
                raise ValueError(f"stages of {names}")
        if config.training.num_tokens_per_train_step % at_once:
            raise ValueError(f"{config.training.num_tokens_per_train_step} tokens, {at_once} at once")

    return check


def write_temporary(name: str, text: str) -> str:
    """Path of a new temporary file ``name`` with this text."""
    path = Path(tempfile.mkdtemp()) / name
    path.write_text(text)
    return str(path)


def refusal(check: Check, text: str, world: int) -> str | None:
    """The first line of the error, or the last line of output of a parser that exits; None if the export is accepted."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            check(text, world)
    except REFUSED as error:
        if isinstance(error, SystemExit) and output.getvalue().strip():
            return output.getvalue().strip().splitlines()[-1]
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


PARSERS = {"megatron": megatron, "internevo": internevo, "accelerate": accelerate, "torchtitan": torchtitan}


def main(framework: str, checkout: str) -> None:
    """Check every export of standard input, and print the results."""
    warnings.simplefilter("ignore")
    cases = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        with contextlib.redirect_stdout(io.StringIO()):
            check = PARSERS[framework](Path(checkout).resolve())
        refused = [{"name": one["name"], "refused": refusal(check, one["text"], one["world"])} for one in cases]
    print(json.dumps(refused))


if __name__ == "__main__":
    main(*sys.argv[1:])
