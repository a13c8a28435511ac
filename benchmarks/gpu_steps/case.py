"""The training steps of the benchmark: a dense decoder, its batch, and how the framework runs it."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """The shape of a Llama-like decoder; defaults are those of Llama 3 8B (arXiv 2407.21783, table 3), with 4 layers."""

    hidden: int = 4096
    layers: int = 4
    heads: int = 32
    kv_heads: int = 8
    ffn: int = 14336
    vocab: int = 128256
    seq_len: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """A training step: ``num_micro`` micro-batches of ``micro_batch`` sequences on each rank, then an update. With
    ``recompute`` every layer's forward is recomputed. ``steps`` are measured after ``warmup`` ones."""

    shape: DecoderShape
    micro_batch: int
    num_micro: int = 1
    compiled: bool = False
    recompute: bool = False
    steps: int = 8
    warmup: int = 3

    @property
    def name(self) -> str:
        """Name of the case in a table."""
        words = [f"mb{self.micro_batch}x{self.num_micro}", "compiled" if self.compiled else "eager"]
        return " ".join([*words, "recompute"] if self.recompute else words)

    @property
    def rank_tokens(self) -> int:
        """Tokens of a rank in a step."""
        return self.micro_batch * self.num_micro * self.shape.seq_len

    def as_text(self) -> str:
        """The case as JSON, for the process that runs it."""
        return json.dumps(asdict(self))


def case_of(text: str) -> StepCase:
    """The case of a text from ``as_text``."""
    fields = json.loads(text)
    return StepCase(shape=DecoderShape(**fields.pop("shape")), **fields)
