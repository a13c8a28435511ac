"""Frameworks' own parsers on exports. It is a program of its own because it stubs out much of the machine.

    python handover_parsers.py FRAMEWORK CHECKOUT < cases.json

FRAMEWORK is a key of PARSERS. Reads a list of exports and prints a list of {name, refused}: the first line of the error
that the checkout's code raises, or null. DeepSpeed, accelerate, torchtitan and Megatron-Bridge need their requirements
installed (of torchtitan grain and tyro; of Bridge transformers, omegaconf, hydra-core and einops); all get stubs for CUDA, Transformer Engine and missing
packages that a parser does not need. Megatron-LM and Bridge also build each model once on the meta device, with layers of
Transformer Engine's names and weights, and its parameters must be as many as ours.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import io
import json
import os
import re
import sys
import tempfile
import types
import typing
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An exported ``text``, named by its config and plan, for ``world`` ranks, ``dp`` of them data-parallel; ``hub`` is its model's folder as on the Hub,
    ``parameters`` its parameters (buffers of routers aside)."""

    name: str
    world: int
    dp: int
    text: str
    hub: str = ""
    parameters: int = 0


Check = Callable[[Case], None]
"""Parses an export; raises what the framework raises."""

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
        "hjson msgpack cpuinfo ninja comet_ml pkg_resources pulp viztracer requests safetensors datasets peft diffusers "
        "mlflow multistorageclient modelopt transformer_engine transformer_engine_torch mamba_ssm causal_conv1d fla"
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


class AnyMembers(type):
    """The class of a stub, which has every constant."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Anything(metaclass=AnyMembers):
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


def transformer_engine() -> None:
    """Let Megatron-Core find a Transformer Engine whose layers have its weights and compute nothing."""
    from torch import empty
    from torch.nn import Module, Parameter

    def layer(name: str, order: str, **shapes: Callable[..., object]) -> type:
        """A class whose arguments, in this ``order`` where they are not named, give the ``shapes`` of its weights."""

        def initialise(self: Module, *arguments: object, **named: object) -> None:
            Module.__init__(self)
            sizes = SimpleNamespace(**({"bias": True} | dict(zip(order.split(), arguments, strict=False)) | named))
            self.use_bias, self.save_original_input, self.tp_size = sizes.bias, False, 1
            for weight, shape in shapes.items():
                self.register_parameter(weight, Parameter(empty(shape(sizes))) if shape(sizes) is not None else None)

        return type(name, (Module,), {"__init__": initialise})

    def width(of: SimpleNamespace) -> object:
        return getattr(of, "normalized_shape", None) or of.hidden_size

    installed = importlib.metadata.version  # core 0.9 reads it there
    importlib.metadata.version = lambda name: "2.99.0" if name == "transformer-engine" else installed(name)
    package, layers = StubModule("transformer_engine"), StubModule("transformer_engine.pytorch")
    package.__version__, package.pytorch = "2.99.0", layers  # type: ignore[attr-defined]
    linear: dict[str, Callable[..., object]] = {
        "weight": lambda of: (of.out_features, of.in_features),
        "bias": lambda of: of.out_features if of.bias else None,
    }
    grouped: dict[str, Callable[..., object]] = {
        "weight": lambda of: (of.num_gemms, of.out_features, of.in_features),
        "bias": lambda of: (of.num_gemms, of.out_features) if of.bias else None,
    }
    sizes = "in_features out_features"
    norm_bias: Callable[..., object] = lambda of: of.in_features if of.normalization == "LayerNorm" else None  # noqa: E731
    sinks: Callable[..., object] = lambda of: (  # noqa: E731
        of.num_attention_heads if getattr(of, "softmax_type", "") == "learnable" else None
    )
    for kind in (
        layer("Linear", sizes, **linear),
        layer(
            "LayerNormLinear", sizes, **linear, layer_norm_weight=lambda of: of.in_features, layer_norm_bias=norm_bias
        ),
        layer("GroupedLinear", f"num_gemms {sizes}", **grouped),
        layer("DotProductAttention", "num_attention_heads kv_channels", softmax_offset=sinks),
        layer("RMSNorm", "normalized_shape", weight=width),
        layer("LayerNorm", "normalized_shape", weight=width, bias=width),
        layer("LayerNormMLP", ""),
    ):
        setattr(layers, kind.__name__, kind)
    offload = StubModule("transformer_engine.pytorch.cpu_offload")
    offload.get_cpu_offload_context = lambda *_, **__: (None, None)  # type: ignore[attr-defined]
    optimizers = StubModule("transformer_engine.pytorch.optimizers")
    optimizers.FusedAdam = lambda master_weight_dtype, exp_avg_dtype, exp_avg_sq_dtype, use_decoupled_grad: None  # type: ignore[attr-defined]
    mamba = StubModule("mamba_ssm.ops.triton.layernorm_gated")
    mamba.RMSNorm = layers.RMSNorm  # type: ignore[attr-defined]
    sys.modules |= {module.__name__: module for module in (package, layers, offload, optimizers, mamba)}


def on_meta() -> contextlib.AbstractContextManager[object]:
    """Everything is made on the meta device, what names CUDA included; the groups of one rank exist."""
    import torch
    from torch import distributed
    from torch.overrides import TorchFunctionMode

    random = importlib.import_module("megatron.core.tensor_parallel.random")
    random.CudaRNGStatesTracker.fork = lambda self, *_: contextlib.nullcontext()
    torch.cuda.Stream = torch.cuda.Event = Anything  # type: ignore[assignment, misc]
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[assignment, method-assign]
    torch.cuda.current_device = lambda: torch.device("meta")  # type: ignore[assignment, return-value]
    if not distributed.is_initialized():
        store = "file://" + write_temporary("store", "")
        distributed.init_process_group("gloo", rank=0, world_size=1, init_method=store)
        importlib.import_module("megatron.core.parallel_state").initialize_model_parallel()

    class Meta(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), named=None):  # type: ignore[no-untyped-def]
            named = dict(named or {})
            return function(*arguments, **(named | ({"device": "meta"} if "device" in named else {})))

    stack = contextlib.ExitStack()
    stack.enter_context(torch.device("meta"))
    stack.enter_context(Meta())
    return stack


# What is one where a whole model is built on one rank, and what then stands for nothing.
ONES = ("tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor")
WHOLE = {f"{axis}_parallel_size": 1 for axis in ONES} | {
    "sequence_parallel": False,
    "virtual_pipeline_model_parallel_size": None,
    "pipeline_model_parallel_layout": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
    "tp_comm_overlap": False,
    "overlap_moe_expert_parallel_comm": False,
    "delay_wgrad_compute": False,
    "gradient_accumulation_fusion": False,
    "moe_token_dispatcher_type": "alltoall",
    "moe_enable_deepep": False,
    "fp8_output_proj": False,
    "use_cpu_initialization": True,
    "perform_initialization": False,
}


def compare_counts(case: Case, build: Callable[[], object]) -> None:
    """Raise ValueError where the model built on the meta device has another number of parameters than ours."""
    for name in [name for name in os.environ if name.startswith("NVTE_")]:
        del os.environ[name]  # a model before had another attention
    with on_meta():
        built = build()
    count = sum(weight.numel() for weight in built.parameters())  # type: ignore[attr-defined]
    if count != case.parameters:
        raise ValueError(f"a model of {count:,} parameters, here {case.parameters:,}")


VARIABLES = ("NVTE_", "CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF", "NCCL_GRAPH_REGISTER")


def set_environment(case: Case) -> None:
    """Set the variables that a launcher does, and those that the file's notes say."""
    for name in [name for name in os.environ if name.startswith(VARIABLES)]:
        del os.environ[name]
    os.environ |= {"WORLD_SIZE": str(case.world), "RANK": "0"}
    os.environ |= dict(re.findall(rf"^# set ((?:{'|'.join(VARIABLES)})\w*)=(\S+)", case.text, re.MULTILINE))


def megatron(checkout: Path) -> Check:
    """parse_args, validate_args and the TransformerConfig built from them (megatron/training/arguments.py,
    core_transformer_config_from_args); where the checkout has gpt_builders.py, the model."""
    stub_cuda(checkout)
    # Without the code of megatron/training/__init__.py.
    sys.modules["megatron.training"] = StubModule("megatron.training", [str(checkout / "megatron" / "training")])
    if (checkout / "megatron" / "core").is_dir():
        transformer_engine()
    arguments = importlib.import_module("megatron.training.arguments")
    # Options that exports leave to the user.
    own = ["--train-iters", "1", "--lr", "1e-4", "--mock-data", "--tokenizer-type", "NullTokenizer"]
    counted = set() if (checkout / "gpt_builders.py").is_file() else None

    def check(case: Case) -> None:
        flags = [word for line in case.text.splitlines() if not line.startswith("#") for word in line.split()]
        sys.argv = ["pretrain_gpt.py", *flags, *own]
        set_environment(case)
        parsed = arguments.validate_args(arguments.parse_args())
        arguments.core_transformer_config_from_args(parsed)
        model = case.name.partition(":")[0]
        if counted is not None and model not in counted and case.parameters:
            counted.add(model)
            vars(parsed).update({key: value for key, value in WHOLE.items() if hasattr(parsed, key)})
            pattern = getattr(parsed, "hybrid_layer_pattern", None)
            parsed.hybrid_layer_pattern = pattern and pattern.replace("|", "")
            kind = "hybrid" if pattern else "gpt"
            builder = getattr(importlib.import_module(f"{kind}_builders"), f"{kind}_builder")
            parsed.padded_vocab_size = parsed.vocab_size
            config = arguments.core_transformer_config_from_args(parsed)
            vars(config).update({key: value for key, value in WHOLE.items() if hasattr(config, key)})
            compare_counts(case, lambda: builder(parsed, True, True, config=config))

    return check


def bridge(checkout: Path) -> Check:
    """The recipe called for the model's folder, and its configuration set and validated as before training
    (training/config.py, runtime_config_update); the provider's model."""
    core = checkout / "3rdparty" / "Megatron-LM"
    stub_cuda(core)
    transformer_engine()
    sys.path.insert(0, str(checkout / "src"))
    importlib.import_module("megatron").__path__ = [str(core / "megatron"), str(checkout / "src" / "megatron")]
    recipes = "megatron.bridge.recipes"
    importlib.import_module("megatron.bridge")
    sys.modules[recipes] = StubModule(recipes, [str(checkout / "src" / "megatron" / "bridge" / "recipes")])
    training = importlib.import_module("megatron.bridge.training.config")
    names_of = importlib.import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    groups = importlib.import_module("megatron.core.process_groups_config").ProcessGroupCollection
    counted: set[str] = set()

    def folder_of(case: Case) -> str:
        """A folder as on the Hub, whose config names its class; that of Kimi K2 is DeepSeek's by another name."""
        config = json.loads(Path(case.hub).read_text())
        config["model_type"] = {"kimi_k2": "deepseek_v3"}.get(config["model_type"], config["model_type"])
        config["architectures"] = [names_of[config["model_type"]]]
        return str(Path(write_temporary("config.json", json.dumps(config))).parent)

    def check(case: Case) -> None:
        names: dict[str, typing.Any] = {}
        exec(compile(case.text, case.name, "exec"), names)  # noqa: S102 - as a launcher imports it
        hub = folder_of(case)
        config = names["recipe"](hub)
        set_environment(case)
        training.get_world_size_safe = lambda: case.world
        training.runtime_config_update(config)
        if case.hub not in counted:
            counted.add(case.hub)
            provider = names["recipe"](hub).model
            vars(provider).update({key: value for key, value in WHOLE.items() if hasattr(provider, key)})

            def build() -> object:
                provider._pg_collection = groups.use_mpu_process_groups()
                provider.finalize()
                return provider.provide()

            compare_counts(case, build)

    return check


def deepspeed(checkout: Path) -> Check:
    """The configuration read and checked (runtime/config.py, DeepSpeedConfig) for the world's data-parallel ranks."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    sys.path.insert(0, str(checkout))
    config = importlib.import_module("deepspeed.runtime.config").DeepSpeedConfig
    importlib.import_module("deepspeed.comm").get_rank = lambda: 0

    def check(case: Case) -> None:
        config(json.loads(case.text), mpu=SimpleNamespace(get_data_parallel_world_size=lambda: case.dp))

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

    def check(case: Case) -> None:
        shared = context.global_context
        shared.load_config(context.Config.from_file(write_temporary("config.py", OWN + case.text)))
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

    def check(case: Case) -> None:
        world = case.world
        words = ["--config_file", write_temporary("config.yaml", case.text), "train.py"]
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
    stub_cuda(checkout)
    manager = importlib.import_module("torchtitan.config").ConfigManager
    parallel_dims = importlib.import_module("torchtitan.distributed").ParallelDims

    def check(case: Case) -> None:
        folder = str(Path(write_temporary("exported_plan.py", case.text)).parent)
        sys.path.insert(0, folder)
        sys.modules.pop("exported_plan", None)
        importlib.invalidate_caches()
        try:
            configure(case.world)
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


def refusal(check: Check, case: Case) -> str | None:
    """The first line of the error, or the last line of output of a parser that exits; None if the export is accepted."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            check(case)
    except REFUSED as error:
        if isinstance(error, SystemExit) and output.getvalue().strip():
            return output.getvalue().strip().splitlines()[-1]
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


PARSERS = {
    "megatron": megatron,
    "bridge": bridge,
    "deepspeed": deepspeed,
    "internevo": internevo,
    "accelerate": accelerate,
    "torchtitan": torchtitan,
}


def main(framework: str, checkout: str) -> None:
    """Check every export of standard input, and print the results."""
    warnings.simplefilter("ignore")
    cases = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        with contextlib.redirect_stdout(io.StringIO()):
            check = PARSERS[framework](Path(checkout).resolve())
        refused = [{"name": one["name"], "refused": refusal(check, Case(**one))} for one in cases]
    print(json.dumps(refused))


if __name__ == "__main__":
    main(*sys.argv[1:])
