"""AICB's module times become samples of the model and degrees that the command names."""

from pathlib import Path

import pytest

import run_workload
from profdb.cases import AttentionCase, GemmCase, MemoryBoundCase
from profdb.store.data_file import load_profile
from tests.workload.aicb.aiob.test_text import EXAMPLE, example
from workload.aicb.aiob import write_aiob

MODEL = """model = dict(num_layers=2, hidden_size=1024, num_attention_heads=8, vocab_size=32000, mlp_ratio=4)
data = dict(seq_len=2048, micro_num=1, micro_bsz=1)
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The verb on AICB's example for a small model over two ranks."""
    write_aiob(tmp_path / "aiob.txt", example())
    (tmp_path / "model.py").write_text(MODEL)
    return [
        *("import-aiob", str(tmp_path / "aiob.txt"), "--config", str(tmp_path / "model.py")),
        *("--gpu", "H100", "--tp", "2", "--micro_batch", "3", "--seq_len", "512"),
        *("--into", str(tmp_path / "data.pt")),
    ]


def changed(words: list[str], flag: str, value: str) -> list[str]:
    at = words.index(flag) + 1
    return [*words[:at], value, *words[at + 1 :]]


def test_sections_are_kept_as_the_operations_they_time(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_workload.main(words) == 0
    printed = capsys.readouterr().out
    assert f"{len(EXAMPLE) - 1} samples of H100 added" in printed
    assert "not imported, no single operation: param_time" in printed
    found = {one.case: one for one in load_profile(words[-1]).samples}
    tokens = 3 * 512
    attention = AttentionCase(batch=3, q_len=512, kv_len=512, heads=4, kv_heads=4, qk_dim=128, v_dim=128)
    # Averages of the example, microseconds.
    assert found[attention].trials_s == pytest.approx((512e-6,))
    assert found[GemmCase(m=tokens, k=1024, n=3 * 512)].trials_s == pytest.approx((889e-6,))
    embedding = MemoryBoundCase(kernel="embedding", direction="forward", rows=tokens, width=1024)
    assert found[embedding].trials_s == pytest.approx((799e-6,))
    assert found[embedding].launched["source"] == "aiob"
    assert run_workload.main(words) == 0
    assert "0 samples of H100 added" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--tp", "3", "tp"),
        ("--tp", "0", "tp"),
        ("--tp", "two", "--tp"),
        ("--micro_batch", "-1", "micro_batch"),
        ("--seq_len", "0", "seq_len"),
        ("--config", "nowhere.py", "nowhere.py"),
        ("--gpu", "A100", "different GPUs"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_imported(
    words: list[str], flag: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_workload.main(words) == 0
    before = Path(words[-1]).read_bytes()
    capsys.readouterr()
    assert run_workload.main(changed(words, flag, value)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert Path(words[-1]).read_bytes() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "train_iter"),
        ("train_iter:3\nEmb:\n    time_gpu_max: 2\n    time_gpu_min: x\n", "line 4"),
        ("train_iter:3\nparam_time:\n time_gpu_max: 3\n time_gpu_min: 1\n time_gpu_avg: 2\n", "no section"),
    ],
)
def test_a_bad_file_says_where(
    words: list[str], text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(words[1]).write_text(text)
    assert run_workload.main(words) == 2
    assert said in capsys.readouterr().err
    assert not Path(words[-1]).exists()


def test_the_gpu_goes_by_every_name_of_its_sheet(words: list[str]) -> None:
    assert run_workload.main(changed(words, "--gpu", "nvidia h200")) == 0
    assert load_profile(words[-1]).machine.gpu == "H200-SXM-141GB"
