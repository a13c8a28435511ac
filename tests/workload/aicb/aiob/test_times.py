"""A file's times on a stage: each half once a pass, and once more for what is recomputed."""

from pathlib import Path

import pytest

from ops.op import Phase
from tests.workload.generating import made
from workload.aicb.aiob import AiobFile, AiobTime, write_aiob
from workload.findings import WorkloadError
from workload.stage_work import PieceWork

# microseconds; the sections of attention with flash attention, as AICB names them, and without it
OTHERS = {
    "Emb": 10,
    "layernorm": 1,
    "layernorm2": 2,
    "mlp_linear_1": 40,
    "layernorm_post": 3,
    "logit_time": 50,
}
FLASH = {"atten_qkv": 20, "atten_flash": 30, "atten_linear": 15}
UNFUSED = {
    "atten_qkv": 20,
    "atten_core_qk": 5,
    "atten_core_softmax": 6,
    "atten_core_contex": 7,
    "atten_linear": 15,
}
MODEL = "--model_size 7 --num_layers 4 --world_size 8"


def layer(words: str, sections: dict[str, int], path: Path) -> PieceWork:
    """A layer of the command with the times of these sections."""
    times = {
        name: AiobTime(max_us=us, min_us=us, avg_us=us)
        for name, us in {**OTHERS, **sections, "param_time": 60}.items()
    }
    write_aiob(path, AiobFile(train_iter=1, sections=times))
    (work,) = made(f"{words} --comp_filepath {path}").works
    return next(piece for piece in work.pieces if piece.name == "block0")


def recomputed_us(piece: PieceWork) -> float:
    return sum(item.seconds for item in piece.backward if item.phase is Phase.RECOMPUTE) * 1e6


def backward_us(piece: PieceWork) -> float:
    return sum(item.seconds for item in piece.backward) * 1e6


@pytest.mark.parametrize(
    ("flags", "sections", "core"), [("--use_flash_attn", FLASH, 30), ("", UNFUSED, 5 + 6 + 7)]
)
def test_recomputation_acts_on_the_times_of_a_file(
    flags: str, sections: dict[str, int], core: int, tmp_path: Path
) -> None:
    path = tmp_path / "aiob.txt"
    whole = 1 + sum(sections.values()) + 2 + 40
    plain = layer(f"{MODEL} {flags}", sections, path)
    assert backward_us(plain) == pytest.approx(2 * whole)  # input and weight gradients, a forward each
    selective = layer(f"{MODEL} {flags} --recompute_activations", sections, path)
    assert recomputed_us(selective) == pytest.approx(core)
    assert backward_us(selective) == pytest.approx(2 * whole + core)
    full = layer(f"{MODEL} {flags} --recompute_full", sections, path)
    assert recomputed_us(full) == pytest.approx(whole)


def test_a_core_that_nobody_timed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"attention\.core \(recompute\): the file has no attention_core"):
        layer(f"{MODEL} --use_flash_attn --recompute_activations", {"atten_qkv": 20}, tmp_path / "aiob.txt")
