"""The generic CSV: what a row becomes, and every bad file refused whole with its line."""

from pathlib import Path

import pytest

from profdb.cases import AttentionCase, CollectiveCase, GemmCase
from profdb.importers.generic_csv import read_curves_csv
from spec.collectives import Collective
from spec.errors import ProfileError

GEMM = "gpu,m,n,k,dtype,latency_us,framework,flag\n"
COMM = "gpu,collective,dtype,num_gpus,bytes,latency_us\n"
ATTENTION = "gpu,batch,seq,heads,kv_heads,head_dim,latency_us,dtype\n"


def read(tmp_path: Path, text: str) -> dict[str, list[object]]:
    path = tmp_path / "curves.csv"
    path.write_text(text)
    return {gpu: list(found) for gpu, found in read_curves_csv(path).items()}


def test_rows_become_cases_in_our_units(tmp_path: Path) -> None:
    found = read(tmp_path, GEMM + "X,4,5,6,bf16,2.5,lib,\nY,1,2,3,half,1,lib,\nX,4,5,7,bf16,9,lib,slow\n")
    assert [len(found[gpu]) for gpu in ("X", "Y")] == [1, 1]
    sample = found["X"][0]
    assert sample.case == GemmCase(m=4, n=5, k=6)  # type: ignore[attr-defined]
    assert sample.trials_s == pytest.approx((2.5e-6,))  # type: ignore[attr-defined]
    assert found["Y"][0].case.dtype_in == "fp16"  # type: ignore[attr-defined]


def test_attention_and_collectives(tmp_path: Path) -> None:
    attention = read(tmp_path, ATTENTION + "X,2,128,8,4,64,7,bf16\n")["X"][0]
    assert attention.case == AttentionCase(  # type: ignore[attr-defined]
        batch=2, q_len=128, kv_len=128, heads=8, kv_heads=4, qk_dim=64, v_dim=64
    )
    comm = read(tmp_path, "gpu,collective,num_gpus,num_nodes,bytes,latency_us\nX,alltoall,16,2,1024,8\n")
    assert comm["X"][0].case == CollectiveCase(  # type: ignore[attr-defined]
        collective=Collective.ALL_TO_ALL, size_bytes=1024, intra=8, inter=2
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "no known form"),
        (GEMM, "no rows"),
        (GEMM + "X,4,5,6,bf16,2.5,lib\n", ":2: 7 cells"),
        (GEMM + "X,4,5,6,bf16,2.5,lib,\nX,4,5,0,bf16,2.5,lib,\n", ":3: k"),
        (GEMM + "X,4,5,six,bf16,2.5,lib,\n", ":2: k"),
        (GEMM + "X,4,5,6,bf16,nan,lib,\n", ":2: latency_us"),
        (GEMM + "X,4,5,6,bf16,0,lib,\n", ":2: latency_us"),
        (GEMM + "X,4,5,6,int3,1,lib,\n", ":2: dtype"),
        (GEMM + ",4,5,6,bf16,1,lib,\n", ":2: gpu"),
        (COMM + "X,teleport,half,2,8,1\n", ":2: collective"),
        (ATTENTION + "X,1,1,inf,1,64,1,bf16\n", ":2: heads"),
    ],
)
def test_bad_files_say_line_and_reason(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=says) as caught:
        read(tmp_path, text)
    assert "curves.csv" in str(caught.value)
    assert "nothing imported" in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no such file"):
        read_curves_csv(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match="cannot be read"):
        read_curves_csv(tmp_path / "binary.csv")
