"""The names of torch that the sources use: found as imported, there in this torch, and on the page of checked
versions.
"""

from pathlib import Path

from benchmarks.torch_names import ABSENT, BUILT_IN, BY_WORD, fact_of, names_in, names_in_use, table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "benchmarks" / "notes" / "torch_versions.md"


def test_names_are_found_under_whatever_they_are_imported_as() -> None:
    source = """
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel as held
import math

def launch(x):
    from torch.nn.attention.varlen import varlen_attn
    torch.cuda.synchronize(math.floor(1.0))
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return functional.silu(x).view(3), SDPBackend.CUDNN_ATTENTION
"""
    assert names_in(source) == {
        "torch.nn.functional",
        "torch.nn.attention.SDPBackend",
        "torch.nn.attention.sdpa_kernel",
        "torch.nn.attention.varlen.varlen_attn",
        "torch.distributed",
        "torch.cuda.synchronize",
        "torch.cuda",
        "torch.distributed.all_reduce",
        "torch.distributed.ReduceOp.MAX",
        "torch.distributed.ReduceOp",
        "torch.nn.functional.silu",
        "torch.nn.attention.SDPBackend.CUDNN_ATTENTION",
    }


def test_every_name_is_there_in_this_torch_or_asked_for_by_word() -> None:
    absent = {name for name in names_in_use() if fact_of(name) == ABSENT}
    assert absent <= set(BY_WORD)
    assert {"torch.cuda._sleep", "torch.distributed.split_group", "torch.nn.functional.scaled_mm"} <= set(
        names_in_use()
    )


def test_every_name_of_the_profiler_is_on_the_page_of_checked_versions() -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [name for name in names_in_use(("profiler",)) if f"`{name}`" not in text]
    assert not missing, f"check them with benchmarks/torch_names.py, and renew {PAGE.name}: {missing}"


def test_a_fact_is_a_signature_or_what_there_is_instead() -> None:
    assert fact_of("torch.cuda._sleep") == "(cycles)"
    assert fact_of("torch.nn.attention.sdpa_kernel").startswith("(backends, set_priority=")
    assert fact_of("torch.mm") == BUILT_IN
    assert (fact_of("torch.nn.Linear"), fact_of("torch.bfloat16")) == ("class", "value")
    assert fact_of("torch.distributed.all_gather_twice") == fact_of("torch.nothing.at_all") == ABSENT


def test_the_table_shows_where_releases_differ() -> None:
    old = {"torch": "1.0", "python": "3.11.1", "torch.a": "(x)", "torch.b": ABSENT, "torch.c": "value"}
    new = {"torch": "2.0", "python": "3.12.0", "torch.a": "(x)", "torch.b": "(y=)", "torch.c": "value"}
    assert table([old, new]).splitlines() == [
        "| name | 1.0 (Python 3.11.1) | 2.0 (Python 3.12.0) |",
        "|---|---|---|",
        "| `torch.a` | (x) | same |",
        "| `torch.b` | absent | (y=) |",
        "",
        "In all of them, value: `torch.c`.",
    ]
