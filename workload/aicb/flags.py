"""The options of ``generate``: AICB's flags, what they say of a model, and which of them change nothing."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from spec.collectives import Collective
from spec.errors import ConfigError
from spec.program.command import decimal, whole
from spec.program.kinds import MOST_BYTES, MOST_COUNT, MOST_EPOCHS, MOST_GPUS, MOST_SEQUENCE_TOKENS
from spec.readers.read_config import add_config

MULTI = "multi_all_reduce"
COLLECTIVES: dict[str, Collective] = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "all_to_all": Collective.ALL_TO_ALL,
    MULTI: Collective.ALL_REDUCE,
}
MEGATRON = "Megatron"
DEEPSPEED = "DeepSpeed"
FSDP = "FSDP"
DEEPSEEK = "DeepSeek"
FRAMES = (MEGATRON, DEEPSPEED, FSDP, DEEPSEEK)

# A model may have none of these; everything else that is counted is 1 or more.
MAY_BE_ZERO = ("q_lora_rank", "n_shared_expert", "n_dense_layers")


# What is counted of a model: the spellings of each flag, and what it says.
COUNTS = (
    (("num_layers",), "decoder layers of the whole model"),
    (("hidden_size",), "hidden size"),
    (("num_attention_heads",), "attention heads"),
    (("num_query_groups",), "key-value heads"),
    (("ffn_hidden_size",), "feed-forward width (of an expert, in a model of experts)"),
    (("moe_ffn_hidden_size",), "width of an expert; --ffn_hidden_size is then that of dense layers"),
    (("vocab_size",), "tokens in the vocabulary"),
    (("max_position_embeddings",), "learned positions"),
    (("make_vocab_size_divisible_by",), "vocabulary padding unit"),
    (("num_experts", "experts"), "experts"),
    (("moe_router_topk", "topk"), "experts per token"),
    (("n_shared_expert",), "shared experts, each as wide as a routed one"),
    (("n_dense_layers", "n_dense_layer"), "leading layers without experts"),
    (("q_lora_rank",), "rank of latent attention's queries (0: none)"),
    (("kv_lora_rank",), "rank of latent attention's keys and values"),
    (("qk_nope_dim",), "channels of a head without positions, in latent attention"),
    (("qk_rope_dim",), "channels of a head with positions, in latent attention"),
    (("v_head_dim",), "value channels of a head, in latent attention"),
)


def check_counts(flags: argparse.Namespace) -> None:
    """Raises ConfigError for a size that no model has."""
    for (name, *_), _ in COUNTS:
        value, low = getattr(flags, name), 0 if name in MAY_BE_ZERO else 1
        if value is not None and value < low:
            raise refuse(name, value, f"{low} or more")


def refuse(flag: str, value: object, allowed: str) -> ConfigError:
    """The error of one flag of the generator."""
    return ConfigError(where="generate", key=f"--{flag}", value=value, allowed=allowed)


# AICB's flags that say nothing of a workload written here: accepted, with the reason.
#
# Source: AICB 2.1, utils/utils.py (every argparse option) and scripts/ (what the shells take besides).


SAME_BYTES = "an activation moves the same bytes whichever it is; --swiglu adds a gate"
LAUNCH = "nothing is launched here"
OTHERS = {
    "workload_only": "a workload is only written here, never run",
    "enable_visual": "pictures are drawn by the verbs traffic and topology (--picture)",
    "overlap_grad_reduce": "a file says what is sent, not what hides it",
    "overlap_version": "a file says what is sent, not what hides it",
    "activation_func": SAME_BYTES,
    "squared_relu": SAME_BYTES,
    "openai_gelu": SAME_BYTES,
    "onnx_safe": SAME_BYTES,
    "bias_gelu_fusion": "kernels are fused as the framework's preset fuses them",
    "amp_enabled": "DeepSpeed runs no apex amp with ZeRO; --dtype float16 is its own",
    "contiguous_gradients": "DeepSpeed's default: one buffer, the same traffic",
    "node_rank": LAUNCH,
    "master_addr": LAUNCH,
    "master_port": LAUNCH,
}
# Those that a value follows.
WITH_VALUE = ("activation_func", "node_rank", "master_addr", "master_port")
# What only a general workload has rows for.
GENERAL_ONLY = ("epoch_num", "computation_enable")
# The same, of one kind of ZeRO stage.
STAGES_1_2 = ("allgather_bucket_size", "use_multi_rank_bucket_allreduce")
STAGE_3 = (
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "model_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
)
# What a communication test takes.
OF_TESTS = (
    "verb",
    "frame",
    "format",
    "output",
    "world_size",
    "nnodes",
    "nproc_per_node",
    "tensor_model_parallel_size",
    "pipeline_model_parallel",
    "test_comm",
    "begin_size",
    "end_size",
    "iter_num",
    "epoch_num",
    "multi_all_reduce_enable",
)
OF_TESTS_ALONE = ("begin_size", "end_size", "iter_num", "multi_all_reduce_enable")


def notes_on(options: argparse.Namespace, defaults: argparse.Namespace, *, test: bool) -> Iterator[str]:
    """Returns a line for every flag on the command line that changes nothing in what is requested; ``defaults`` are the
    options of a command without flags, ``test``: a communication test is requested."""
    given = [name for name, value in vars(options).items() if value != getattr(defaults, name, None)]
    reasons = _reasons_in_a_test(given) if test else _reasons_in_a_workload(options)
    reasons |= OTHERS
    for name in given:
        if name in reasons:
            yield f"--{name} changes nothing: {reasons[name]}"


def _reasons_in_a_test(given: list[str]) -> dict[str, str]:
    return {name: "a test has no model" for name in given if name not in OF_TESTS}


def _reasons_in_a_workload(options: argparse.Namespace) -> dict[str, str]:
    reasons = dict.fromkeys(OF_TESTS_ALONE, "it is of a communication test (--test_comm)")
    if options.format != "general":
        alone = "it acts in a general workload alone (--format general)"
        return reasons | dict.fromkeys((*GENERAL_ONLY, *STAGES_1_2, *STAGE_3), alone)
    if str(options.zero_stage or options.stage or 3) == "3":
        return reasons | dict.fromkeys(STAGES_1_2, "it acts with ZeRO stages 1 and 2")
    return reasons | dict.fromkeys(STAGE_3, "it acts with ZeRO stage 3")


# What AICB's inference commands say: MODEL CONFIG --phase decode --result_dir D --aiob_forward_loops 10. Source: AICB 2.1,
# scripts/inference_workload_with_aiob.sh.
INFERENCE = ("phase", "result_dir", "aiob_forward_loops")


def inference(word: str) -> str:
    """Refuses a value of an inference command."""
    raise refuse("phase", word, "training alone: AICB's inference commands are not written here")


# The options of ``run_workload.py generate``, named as AICB names them.
#
# Every option may be written with dashes or underscores.

SIMAI = "simai"
GENERAL = "general"
FORMATS = (SIMAI, GENERAL)
COLLECTIVE_TEST = "collective_test"


class Options:
    """Adds options in both spellings to one group of a parser."""

    def __init__(self, group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
        self.group = group

    def add(self, *names: str, help_text: str, **settings: object) -> None:
        """One option; the first name is the attribute."""
        spellings = dict.fromkeys(
            f"{'-' * min(len(name), 2)}{spelling}" for name in names for spelling in (name, name.replace("_", "-"))
        )
        self.group.add_argument(*spellings, dest=names[0], help=help_text, **settings)  # type: ignore[arg-type]

    def whole(self, *names: str, help_text: str, default: int | None = None, most: int = MOST_COUNT) -> None:
        """A whole number up to ``most``."""
        self.add(*names, help_text=help_text, type=whole(0, most), default=default)

    def switch(self, *names: str, help_text: str) -> None:
        """On when given."""
        self.add(*names, help_text=help_text, action="store_true")


def add_generate(verb: argparse.ArgumentParser) -> None:
    """All options of the verb."""
    _what(Options(verb.add_argument_group("what to write")))
    _model(Options(verb.add_argument_group("model")))
    _training(Options(verb.add_argument_group("training")))
    _deepspeed(Options(verb.add_argument_group("DeepSpeed (sizes in elements)")))
    _times(Options(verb.add_argument_group("compute times (default: 1 ns each, as AICB without AIOB)")))
    _others(Options(verb.add_argument_group("accepted without effect")))
    _tests(Options(verb.add_argument_group("communication test instead of a model (sizes in bytes)")))
    for name in INFERENCE:
        Options(verb).add(name, help_text=argparse.SUPPRESS, default=argparse.SUPPRESS, type=inference)


def default_options() -> argparse.Namespace:
    """The options of a command without flags."""
    parser = argparse.ArgumentParser()
    add_generate(parser)
    return parser.parse_args([])


def truth(word: str) -> bool:
    """True or False, for argparse."""
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if word.lower() not in known:
        raise ValueError(f"{word!r} is neither true nor false")
    return known[word.lower()]


def rank_or_none(word: str) -> int | None:
    """A pipeline rank; AICB's -1 is none."""
    return None if word == "-1" else whole(0, MOST_GPUS)(word)


def collective_name(word: str) -> str:
    """A collective with its underscores, which AICB lets away."""
    joined = {name.replace("_", ""): name for name in COLLECTIVES}
    return joined.get(word.replace("_", ""), word)


def _what(out: Options) -> None:
    out.add(
        "frame",
        "comm_frame",
        help_text=f"framework (default Megatron), or {COLLECTIVE_TEST}",
        choices=(*FRAMES, COLLECTIVE_TEST),
        default=FRAMES[0],
    )
    out.add("format", help_text="simai (text) or general (CSV); default simai", choices=FORMATS, default=SIMAI)
    out.add("output", help_text="file, or folder for AICB's file name (default: here)", type=Path)
    out.add("pipeline_stage", help_text="slowest (default), all distinct stages, or a stage's number")
    out.add("pp_rank", help_text="as --pipeline_stage; -1: not given", type=rank_or_none)
    out.add("stage", help_text="ZeRO stage (DeepSpeed, FSDP; default 3), otherwise as --pipeline_stage")
    out.switch("strict_export", help_text="refuse what the SimAI format cannot say")
    out.add("bundle", "export_bundle", help_text="folder for workload, topology, busbw.yaml, commands", type=Path)
    out.whole("epoch_num", help_text="iterations in a general workload (default 1)", default=1, most=MOST_EPOCHS)
    out.switch("computation_enable", help_text="matrix products as rows of a general workload")
    out.switch("show_groups", help_text="print the ranks of each parallel group")
    out.add("gpu_type", help_text="word in front of AICB's file name")


def _model(out: Options) -> None:
    out.add("model_size", "m", help_text="7, 13, 22, 30, 65, 70, 175, 405, moe, deepseek16|236|671, ...")
    add_config(out.group, "model config instead of a size")
    out.add("model_name", help_text="name in file names")
    for names, text in COUNTS:
        out.whole(*names, help_text=text)
    out.switch("swiglu", help_text="gated feed-forward")
    out.add("gated_linear_unit", help_text="true: as --swiglu", type=truth, default=False)
    out.switch("add_bias_linear", help_text="biases on every product")
    out.switch("moe_enable", help_text="experts instead of dense feed-forward layers")
    out.switch("moe_grouped_gemm", "grouped_gemm", help_text="experts' products grouped (always so here)")


def _training(out: Options) -> None:
    out.whole("world_size", help_text="GPUs (default: nnodes x nproc_per_node)", most=MOST_GPUS)
    out.whole("nnodes", help_text="nodes", most=MOST_GPUS)
    out.whole("nproc_per_node", help_text="GPUs per node", most=MOST_GPUS)
    for names, text in (
        (("tensor_model_parallel_size", "tp_num", "tp"), "tensor-parallel ranks"),
        (("pipeline_model_parallel", "pipeline_model_parallel_size", "pp_num", "pp"), "pipeline stages"),
        (("context_parallel_size",), "context-parallel ranks"),
        (("expert_model_parallel_size", "ep"), "expert-parallel ranks"),
        (("virtual_pipeline_model_parallel_size",), "virtual chunks of a stage"),
        (("micro_batch", "micro_batch_size", "batch_size"), "sequences in a micro-batch"),
    ):
        out.whole(*names, help_text=f"{text} (default 1)", default=1, most=MOST_GPUS)
    out.whole("expert_tensor_parallel_size", help_text="ranks of one expert (default: tp)", most=MOST_GPUS)
    out.whole("global_batch", help_text="sequences per step (default: dp x micro_batch)")
    out.whole("seq_length", "seq_len", help_text="tokens per sequence (default 2048)", most=MOST_SEQUENCE_TOKENS)
    out.switch("enable_sequence_parallel", "sp", "sp_enable", help_text="sequence parallelism")
    out.add(
        "dtype",
        help_text="bfloat16 (default) or float16; the bytes are the same, DeepSpeed asks for overflow in fp16",
        choices=("bfloat16", "float16"),
        default="bfloat16",
    )
    out.switch("use_flash_attn", "flash_attn", help_text="flash attention")
    out.switch("use_distributed_optimizer", help_text="optimizer state over dp (ZeRO-1)")
    out.switch("recompute_activations", "recompute", help_text="recompute the attention core (Megatron's selective)")
    out.switch("recompute_full", help_text="recompute whole layers")


def _deepspeed(out: Options) -> None:
    out.whole("zero_stage", help_text="ZeRO stage, as --stage", most=3)
    out.whole("allgather_bucket_size", help_text="elements of one parameter all-gather, stages 1 and 2 (default: all)")
    for name, default in (
        ("reduce_bucket_size", 500_000_000),
        ("prefetch_bucket_size", 50_000_000),
        ("param_persistence_threshold", 100_000),
        ("model_persistence_threshold", 2**63 - 1),
        ("max_live_parameters", 1_000_000_000),
        ("max_reuse_distance", 1_000_000_000),
    ):
        out.whole(name, help_text=f"DeepSpeed's default {default}", most=2**63 - 1)
    out.add(
        "use_multi_rank_bucket_allreduce",
        help_text="false: stages 1 and 2 reduce to each owner instead of all-reducing (default true)",
        choices=("true", "false"),
        default="true",
    )


def _times(out: Options) -> None:
    out.add("profile", help_text="times from this profile", type=Path)
    out.add("cluster", help_text="hardware spec of configs/clusters (default: the profile's, else h100-sxm)")
    out.add("missing", help_text="a missing curve: error or modelled", choices=("error", "modelled"), default="error")
    out.add("comp_filepath", help_text="times from this AIOB file", type=Path)
    out.switch("aiob_enable", "aiob", help_text="times from prof_data/data.pt, or the AIOB file when given")
    out.add("write_aiob", help_text="also write the forward times to this AIOB file", type=Path)
    out.add("fixed_time_us", help_text="every operation takes this long", type=decimal(0.0, 1e9))


def _tests(out: Options) -> None:
    out.add("test_comm", help_text="sweep one collective", type=collective_name, choices=tuple(COLLECTIVES))
    out.whole("iter_num", help_text="repetitions of each size (default 1)", default=1)
    out.whole(
        "multi_all_reduce_enable",
        "muti_all_reduce_enable",
        help_text="1: groups of --pipeline_model_parallel ranks, one of each node",
        default=0,
    )
    out.whole("begin_size", help_text="smallest size (default 1 MiB)", default=2**20, most=MOST_BYTES)
    out.whole("end_size", help_text="largest size (default: begin_size)", most=MOST_BYTES)


def _others(out: Options) -> None:
    for name, why in OTHERS.items():
        if name in WITH_VALUE:
            out.add(name, help_text=why)
        else:
            out.switch(name, help_text=why)
