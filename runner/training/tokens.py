"""Synthetic tokens: the same for a sequence of a step whatever the plan."""

import zlib

import torch
from torch import Tensor

from solver.plans.plan_table import Plan


def sequences_of(plan: Plan, data_rank: int) -> range:
    """The sequences of a step's global batch, by number, that a data-parallel rank trains on."""
    own = plan.num_micro * plan.micro_batch
    return range(data_rank * own, (data_rank + 1) * own)


def step_tokens(step: int, sequences: range, seq_len: int, vocab: int) -> Tensor:
    """[sequences, seq_len + 1] on the host; token t + 1 is what token t should foretell."""
    rows = []
    for sequence in sequences:
        seed = zlib.crc32(f"{step}.{sequence}".encode())
        generator = torch.Generator().manual_seed(seed)
        rows.append(torch.randint(vocab, (seq_len + 1,), generator=generator))
    return torch.stack(rows)
