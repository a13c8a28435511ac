"""The sizes that AICB's users ask for, and the shipped configs that stand for them."""

from pathlib import Path

from workload.aicb.generate.shape_flags import DEEPSEEK, DEEPSPEED, FSDP, ShapeFlags, refuse

# AICB's GPT presets are Megatron's GPT, its DeepSpeed ones LLaMA.
GPT_SIZES = {"7": "7B_gpt.toml", "13": "13B_gpt.toml"}
LLAMA_SIZES = {"7": "7B_llama2.py", "13": "13B_llama2.py"}
SIZES = {
    "8": "8B_llama3.py",
    "22": "22B_gpt.toml",
    "30": "30B_llama.toml",
    "65": "65B_llama.toml",
    "70": "70B_llama2.py",
    "175": "175B_gpt.toml",
    "405": "405B_llama3.py",
    "moe": "8x7B_mixtral.py",
    "deepseek16": "16B_deepseek_v2_lite.toml",
    "deepseek236": "236B_deepseek_v2.toml",
    "deepseek671": "671B_deepseek_v3.toml",
}
# AICB's "deepseek" says "the rest from the command line"; the largest is what the rest starts from here.
ANY_DEEPSEEK = "deepseek"
DEEPSEEK_SIZES = {
    ANY_DEEPSEEK: "deepseek671",
    "16": "deepseek16",
    "236": "deepseek236",
    "671": "deepseek671",
}
# Sizes of which no dimensions are published.
WITHOUT_DIMENSIONS = ("270",)


def config_path(flags: ShapeFlags, root: Path) -> Path | None:
    """The config file that stands for a size; None when the dimensions must be given.

    Raises ConfigError for an unknown size.
    """
    if flags.config is not None:
        return flags.config
    if flags.model_size is None:
        return None
    size = _plain(flags.model_size)
    if flags.frame == DEEPSEEK or size in DEEPSEEK_SIZES:
        size = DEEPSEEK_SIZES.get(size, size)
    if size in WITHOUT_DIMENSIONS:
        return None
    known = {**SIZES, **(LLAMA_SIZES if flags.frame in (DEEPSPEED, FSDP) else GPT_SIZES)}
    if size not in known:
        raise refuse("model_size", flags.model_size, f"one of {', '.join([*known, *WITHOUT_DIMENSIONS])}")
    return root / "configs" / known[size]


def size_notes(flags: ShapeFlags) -> tuple[str, ...]:
    """What to say of a size that stands for less than it names."""
    if flags.config is None and flags.model_size and _plain(flags.model_size) == ANY_DEEPSEEK:
        return ("--model_size deepseek: the dimensions of deepseek671 where no flag says otherwise",)
    return ()


def _plain(model_size: str) -> str:
    size = model_size.strip().lower().removeprefix("deepseek-")
    return size if size in SIZES else size.removesuffix("b")
