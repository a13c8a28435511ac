"""Vidur's folders, both directions."""

from pathlib import Path

import pytest

from profdb.cases import AttentionCase, CollectiveCase, GemmCase, MemoryBoundCase
from profdb.cost_model import ProfileCostModel
from profdb.exporters.vidur import VidurModel, write_compute, write_network
from profdb.importers.csv_rows import CsvRow
from profdb.importers.vidur import mlp_cases, read_attention, read_mlp, read_network, read_vidur_folder
from profdb.sample import Sample
from spec.collectives import Collective
from spec.errors import ExportError, ProfileError
from spec.origin import Origin
from tests.profdb.profiles import profile, sample

MLP = (
    "time_stats.attn_pre_proj.median,time_stats.mlp_act.median,"
    "n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,num_tokens,num_tensor_parallel_workers\n"
)
# a row of Llama-2-70B's sizes (64 heads, 8 kv heads, hidden 8192, ffn 28672) cut over 8 ranks
MLP_ROW = "0.5,0.1,64,8,8192,28672,32000,True,4096,8\n"
ATTENTION = (
    "n_embd,n_q_head,n_kv_head,num_tensor_parallel_workers,batch_size,prefill_chunk_size,kv_cache_size,"
    "is_prefill,time_stats.attn_prefill.median\n"
)
NETWORK = ",time_stats.all_reduce.median,rank,num_workers,size,collective,devices_per_node\n"
MODEL = VidurModel(n_head=8, n_kv_head=4, n_embd=512, n_expanded_embd=1024, vocab_size=1000, use_gated_mlp=True)


def put(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_mlp_rows_become_shard_sized_operations(tmp_path: Path) -> None:
    found = read_mlp(put(tmp_path, "mlp.csv", MLP + MLP_ROW))
    assert [s.case for s in found] == [
        # 8 query heads, and one key and one value head, of 128 each
        GemmCase(m=4096, k=8192, n=8 * 128 + 2 * 128, dtype_in="fp16", dtype_out="fp16"),
        MemoryBoundCase(kernel="swiglu", direction="forward", rows=4096, width=28672 // 8, dtype="fp16"),
    ]
    assert found[0].trials_s == pytest.approx((0.5e-3,))


@pytest.mark.parametrize(("gated", "outputs"), [("True", 2 * 28672 // 8), ("False", 28672 // 8)])
def test_gate_and_up_are_one_product(gated: str, outputs: int, tmp_path: Path) -> None:
    text = MLP.replace("attn_pre_proj", "mlp_up_proj") + MLP_ROW.replace("True", gated)
    found = read_mlp(put(tmp_path, "mlp.csv", text))
    assert found[0].case == GemmCase(m=4096, k=8192, n=outputs, dtype_in="fp16", dtype_out="fp16")


def test_attention_keeps_prefill_and_counts_the_cache(tmp_path: Path) -> None:
    rows = "512,8,4,2,1,64,128,True,0.25\n512,8,4,2,4,0,95,False,\n"
    found = read_attention(put(tmp_path, "attention.csv", ATTENTION + rows))
    assert [s.case for s in found] == [
        AttentionCase(batch=1, q_len=64, kv_len=192, heads=4, kv_heads=2, qk_dim=64, v_dim=64, dtype="fp16")
    ]


def test_network_rows(tmp_path: Path) -> None:
    found = read_network(put(tmp_path, "all_reduce.csv", NETWORK + "0,0.043,0,4,2048,all_reduce,2\n"))
    assert found[0].case == CollectiveCase(
        collective=Collective.ALL_REDUCE, size_bytes=2048, intra=2, inter=2, dtype="fp16"
    )


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("mlp.csv", "a,b\n1,2\n", ":1: column n_head"),
        ("mlp.csv", MLP + MLP_ROW.replace("0.5", "0.0"), ":2: time_stats.attn_pre_proj.median"),
        ("mlp.csv", MLP + MLP_ROW.replace("True", "maybe"), ":2: use_gated_mlp"),
        ("mlp.csv", MLP + MLP_ROW + "1,1,64,8,8192,28672,32000,True,4096,7\n", ":3: .*must divide"),
        ("attention.csv", ATTENTION + "512,8,4,2,1,64,128,True,\n", ":2: time_stats.attn_prefill"),
        ("attention.csv", ATTENTION + "512,8,4,2,1,64,-1,True,1\n", ":2: kv_cache_size"),
        ("all_reduce.csv", NETWORK + "0,0.043,0,5,2048,all_reduce,2\n", ":2: num_workers"),
        ("all_reduce.csv", NETWORK + "0,0.043,0,4,2048\n", ":2: 5 cells"),
    ],
)
def test_bad_files(name: str, text: str, says: str, tmp_path: Path) -> None:
    put(tmp_path, name, text)
    with pytest.raises(ProfileError, match=says):
        read_vidur_folder(tmp_path)


def test_a_folder_without_profiles_and_a_file_of_another_name(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="nothing imported"):
        read_vidur_folder(tmp_path)
    with pytest.raises(ProfileError, match="must be named"):
        read_network(put(tmp_path, "all_gather.csv", NETWORK))


def test_network_is_written_and_read_back(tmp_path: Path) -> None:
    sizes = (1024, 4096, 1 << 20)
    samples = [
        sample(CollectiveCase(collective=kind, size_bytes=size, intra=2, inter=1, dtype="fp16"), 1e-5 + size / 1e11)
        for kind in (Collective.ALL_REDUCE, Collective.P2P)
        for size in sizes
    ]
    files = write_network(profile(samples), tmp_path / "out", gpus_per_node=8)
    assert [path.name for path in files] == ["all_reduce.csv", "send_recv.csv"]
    back = read_vidur_folder(tmp_path / "out")
    assert [s.case for s in back] == [s.case for s in samples]
    assert [s.median_s for s in back] == pytest.approx([s.median_s for s in samples])


def test_modelled_times_are_not_exported(tmp_path: Path) -> None:
    case = CollectiveCase(collective=Collective.ALL_REDUCE, size_bytes=1024, intra=2, inter=1)
    modelled = profile([sample(case, 1e-5, Origin.MODELLED)])
    with pytest.raises(ExportError, match="no measured"):
        write_network(modelled, tmp_path, gpus_per_node=8)


def compute_samples() -> list[Sample]:
    """Every operation of MODEL on 256 and 1024 tokens of one rank, in bf16."""
    found = []
    for tokens in (256, 1024):
        sizes = {
            "n_head": 8,
            "n_kv_head": 4,
            "n_embd": 512,
            "n_expanded_embd": 1024,
            "use_gated_mlp": True,
            "num_tokens": tokens,
            "num_tensor_parallel_workers": 1,
        }
        row = CsvRow(Path("x"), 1, {name: str(value) for name, value in sizes.items()})
        for _, case in mlp_cases(row):
            if isinstance(case, GemmCase):
                found.append(sample(GemmCase(m=case.m, k=case.k, n=case.n), 1e-6 * tokens))
            elif isinstance(case, MemoryBoundCase):
                kernel = MemoryBoundCase(kernel=case.kernel, direction="forward", rows=case.rows, width=case.width)
                found.append(sample(kernel, 1e-8 * tokens))
        attention = AttentionCase(batch=1, q_len=tokens, kv_len=tokens, heads=8, kv_heads=4, qk_dim=64, v_dim=64)
        found.append(sample(attention, 2e-6 * tokens))
    return found


def test_compute_is_written_where_measured_and_read_back(tmp_path: Path) -> None:
    cost_model = ProfileCostModel(profile(compute_samples()))
    files = write_compute(cost_model, MODEL, tmp_path, degrees=(1,), tokens=(256, 1024, 1 << 20))
    assert [path.name for path in files] == ["mlp.csv", "attention.csv"]
    assert len((tmp_path / "mlp.csv").read_text().splitlines()) == 3
    back = {s.case: s.median_s for s in read_vidur_folder(tmp_path)}
    qkv = GemmCase(m=1024, k=512, n=512 + 2 * 256, dtype_in="fp16", dtype_out="fp16")
    assert back[qkv] == pytest.approx(1024e-6, rel=1e-6)
    with pytest.raises(ExportError, match="inside measured data"):
        write_compute(cost_model, MODEL, tmp_path, degrees=(1,), tokens=(1 << 20,))
