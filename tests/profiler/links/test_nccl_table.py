"""nccl-tests' table: what two ranks print is read back by our own importer, and results are checked."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from profdb.cases import CollectiveCase
from profdb.importers.nccl_tests import read_nccl_tests
from profiler.links import nccl_table
from profiler.links.nccl_table import SYMMETRIC, Party, TableRequest, addends, digits, total, values
from pss.command import main
from spec.collectives import Collective
from tests.profiler.distributed.test_world import environment

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def printed() -> str:
    """The tables of two gloo ranks."""
    words = ["launch", "--nproc", "2", "--", "links", "--device", "cpu", "--min_bytes", "1KiB", "--max_bytes", "16KiB"]
    words += ["--factor", "4", "--iters", "2", "--warmup", "1", "--pair_bytes", "64KiB"]
    ran = subprocess.run(
        [sys.executable, "run_workload.py", *words], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )  # fmt: skip
    return ran.stdout


@pytest.mark.nightly
@pytest.mark.distributed
def test_the_table_is_nccl_tests_own(printed: str, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(printed)
    (samples,) = read_nccl_tests(path).values()
    cases = {(one.case, one.launched["in_place"]) for one in samples}
    kinds = {(case.collective, case.size_bytes, place) for case, place in cases if isinstance(case, CollectiveCase)}
    both = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    single = ((Collective.ALL_REDUCE, True), (Collective.ALL_TO_ALL, False), (Collective.BROADCAST, True))
    sizes = (1024, 4096, 16384)
    wanted = {(kind, size, place) for kind in both for size in sizes for place in (True, False)}
    assert kinds == wanted | {(kind, size, place) for kind, place in single for size in sizes}
    assert printed.count("# Out of bounds values : 0 OK") == 5
    assert printed.count("# Avg bus bandwidth    : ") == 5
    assert "GB/s of a message of 0.0625 MiB" in printed


@pytest.mark.parametrize("ranks", [2, 7, 1024])
def test_sums_of_addends_are_exact_in_bfloat16(ranks: int) -> None:
    """Added in bfloat16 one by one, as a ring does."""
    added = torch.zeros(23, dtype=torch.bfloat16)
    for rank in range(ranks):
        added += addends(rank, ranks, 23, torch.bfloat16, CPU)
    assert torch.equal(total(ranks, 23, torch.bfloat16, CPU), added)
    assert added.max() == min(ranks, 5)


class OneOfTwo:
    """torch's collectives as rank 1 of 2 sees them: the other rank's part is made here, wrong by ``error``."""

    def __init__(self, error: float) -> None:
        self.error = error

    def other(self, elements: int) -> torch.Tensor:
        return values(0, elements, torch.float32, CPU) + self.error

    def added(self, elements: int) -> torch.Tensor:
        return addends(0, 2, elements, torch.float32, CPU) + self.error

    def all_reduce(self, buffer: torch.Tensor, group: object) -> None:
        buffer += self.added(buffer.numel())

    def all_gather(self, whole: torch.Tensor, part: torch.Tensor, group: object) -> None:
        whole.copy_(torch.cat([self.other(part.numel()), part.clone()]))

    def reduce_scatter(self, part: torch.Tensor, whole: torch.Tensor, group: object) -> None:
        part.copy_((whole + self.added(whole.numel())).chunk(2)[1])

    def all_to_all(self, received: torch.Tensor, sent: torch.Tensor, group: object) -> None:
        received.copy_(torch.cat([self.other(sent.numel()).chunk(2)[1], sent.chunk(2)[1]]))

    def broadcast(self, buffer: torch.Tensor, source: int, group: object) -> None:
        buffer.copy_(self.other(buffer.numel()))


@pytest.mark.parametrize("kind", nccl_table.EXCHANGES)
def test_every_result_is_checked(kind: Collective, monkeypatch: pytest.MonkeyPatch) -> None:
    party = Party(rank=1, ranks=2, dtype=torch.float32, where=CPU)
    for in_place in (False, True):
        monkeypatch.setattr(nccl_table, "torch_collectives", OneOfTwo(0.0))
        exchange = nccl_table.EXCHANGES[kind](party, 64, in_place)
        if exchange is None:
            continue
        assert (exchange.wrong(), exchange.wrong()) == (0, 0)  # the second as the first: nothing is left of it
        monkeypatch.setattr(nccl_table, "torch_collectives", OneOfTwo(1.0))
        assert exchange.wrong() > 0


@pytest.mark.parametrize("operation", SYMMETRIC)
def test_symmetric_memory_is_asked_as_torch_declares_it(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own schema binds the call; the buffer is what a kernel of it wants."""
    import torch.distributed._symmetric_memory

    party = Party(rank=1, ranks=2, dtype=torch.bfloat16, where=torch.device("meta"))
    monkeypatch.setattr(nccl_table, "symmetric_buffer", lambda elements, party: (party.own(elements), "0"))
    seen: list[tuple[object, ...]] = []
    operations = {name: lambda *words: seen.append(words) for name in SYMMETRIC}
    schema = getattr(torch.ops.symm_mem, operation).default._schema
    monkeypatch.setattr(
        torch.ops, "symm_mem", type("Operations", (), {k: staticmethod(v) for k, v in operations.items()})
    )
    kind, make = SYMMETRIC[operation]
    exchange = make(party, 64, kind is Collective.ALL_REDUCE)
    assert exchange is not None
    exchange.call()
    (words,) = seen
    assert len(words) == len(schema.arguments)
    for word, argument in zip(words, schema.arguments, strict=True):
        assert isinstance(word, torch.Tensor if "Tensor" in str(argument.type) else str)
    assert exchange.expected.shape == exchange.result.shape


def test_sizes_go_by_the_factor_in_equal_parts() -> None:
    request = TableRequest(least_bytes=1000, most_bytes=9000, factor=3, dtype="bf16")
    assert list(request.sizes(8)) == [1008, 3008, 9008]


def test_times_have_four_figures() -> None:
    assert [digits(one) for one in (12.3, 123.4, 12345.0)] == [2, 1, 0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--min_bytes 4KiB --max_bytes 1KiB", "--max_bytes = 1024: --min_bytes (4,096) or more"),
        ("--collectives p2p", "--collectives = 'p2p': some of all_reduce, all_gather"),
        ("--collectives ring", "--collectives = 'ring': some of all_reduce, all_gather"),
    ],
)
def test_a_table_of_no_sizes_or_of_other_collectives_is_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["links", "--device", "cpu", *words.split()]) == 2
    assert said in capsys.readouterr().err
