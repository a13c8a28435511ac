"""The questions whose search is timed."""

from dataclasses import dataclass
from pathlib import Path

from solver.problem.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A question by the words of a user; sizes in GPUs and tokens."""

    config: str
    world_size: int
    global_batch_tokens: int
    framework: str | None = None
    seq_len: int | None = None

    def request(self, root: Path) -> Request:
        """What the command line would ask."""
        return Request(
            root=root,
            profile=root / "prof_data" / "data.pt",
            config=root / "configs" / self.config,
            world_size=self.world_size,
            global_batch_tokens=self.global_batch_tokens,
            framework=self.framework,
            seq_len=self.seq_len,
        )


QUESTIONS: dict[str, Timed] = {
    "7B on 128": Timed(config="7B_internlm2.py", world_size=128, global_batch_tokens=1 << 22),
    "70B on 1,024": Timed(config="70B_llama2.py", world_size=1024, global_batch_tokens=1 << 22),
    "GPT-175B on 1,024, megatron": Timed(
        config="175B_gpt.toml", world_size=1024, global_batch_tokens=1536 * 2048, framework="megatron"
    ),
    "405B on 1,024": Timed(config="405B_llama3.py", world_size=1024, global_batch_tokens=1 << 24),
    "DeepSeek-V3 on 2,048": Timed(
        config="671B_deepseek_v3.toml", world_size=2048, global_batch_tokens=15360 * 4096
    ),
    "405B on 16,384": Timed(config="405B_llama3.py", world_size=16384, global_batch_tokens=1 << 24),
    "70B on 1,024, zero-bubble": Timed(
        config="70B_llama2.py", world_size=1024, global_batch_tokens=1 << 22, framework="zero-bubble"
    ),
}


def sweep() -> list[Timed]:
    """A hundred questions as a sweep asks them: one model on 8 to 1,024 GPUs, batches, frameworks, lengths."""
    return [
        Timed(
            config="8B_llama3.py",
            world_size=world,
            global_batch_tokens=batch,
            framework=framework,
            seq_len=length,
        )
        for world in (8, 16, 32, 64, 128)
        for batch in (1 << 21, 1 << 22)
        for framework in ("megatron", "internevo", "fsdp", "deepspeed", "zero-bubble")
        for length in (4096, 8192)
    ]
