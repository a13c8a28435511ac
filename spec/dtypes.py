"""Number formats by name, with their width in bytes."""

from spec.errors import ConfigError

DTYPE_BYTES: dict[str, float] = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp4": 0.5,
    # 4 bits and 0.127 of constants, themselves quantized (arXiv 2305.14314 sec. 3, "Double Quantization")
    "nf4": 4.127 / 8,
    # GPTQ with groups of 128: 4 bits, and a group's 16-bit scale and 4-bit zero (arXiv 2210.17323 sec. 4)
    "int4": (4 + 20 / 128) / 8,
    "int64": 8.0,
    "int32": 4.0,
    "int8": 1.0,
}

ALIASES: dict[str, str] = {
    "torch.bfloat16": "bf16",
    "bfloat16": "bf16",
    "torch.tf32": "tf32",
    "torch.float16": "fp16",
    "torch.half": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "torch.float32": "fp32",
    "float32": "fp32",
    "float": "fp32",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


def canonical_dtype(name: str, *, where: str = "dtype", key: str = "dtype") -> str:
    """The short name of a number format; raises ConfigError for an unknown one."""
    short = ALIASES.get(name, name)
    if short not in DTYPE_BYTES:
        raise ConfigError(where=where, key=key, value=name, allowed=f"one of {', '.join(DTYPE_BYTES)}")
    return short


def dtype_bytes(name: str) -> float:
    """Width in bytes of a canonical number format (fp4 is half a byte)."""
    return DTYPE_BYTES[name]
