"""Stages of sharding, and optimizers on the host, as frameworks and people write them."""

import pytest

from benchmarks.accuracy_rows.clauses import Reading, readings
from tests.benchmarks.made_up_rows import job_of_row, plans, row

ALONE = {"tp": "1", "pp": "1", "dp": "8"}


@pytest.mark.parametrize(
    ("framework", "notes", "stage", "group"),
    [
        ("PyTorch FSDP", "", 3, 8),
        ("torchtitan", "", 3, 8),
        ("MosaicML LLM Foundry", "", 3, 8),
        ("PyTorch FSDP", "SHARD_GRAD_OP", 2, 8),
        ("FSDP2", "HYBRID_SHARD_ZERO2", 2, 4),
        ("PyTorch FSDP", "hybrid shard", 3, 4),
        ("torchtitan", "reshard_after_forward=never", 2, 8),
        ("PyTorch FSDP", "NO_SHARD", 0, 1),
        ("DeepSpeed", "", 0, 1),
        ("DeepSpeed ZeRO-2", "", 2, 8),
        ("DeepSpeed", "zero_stage=3", 3, 8),
        ("DeepSpeed", "ZeRO stage 1", 1, 8),
        ("Megatron-LM", "distributed optimizer", 1, 8),
        ("Megatron-LM", "", 0, 1),
    ],
)
def test_a_stage_that_no_column_has_is_read_of_words(
    framework: str, notes: str, stage: int, group: int
) -> None:
    cells = {"framework": framework, "notes": notes, "zero_stage": "", "gpus_per_node": "4", **ALONE}
    (found,) = {(plan.zero_stage, plan.zero_size) for plan in plans(**cells)}
    assert found == (stage, group)
    assert not [what for reading, what in readings(row(**cells)) if reading is Reading.UNREAD]


def test_a_column_is_believed_and_a_word_against_it_reported() -> None:
    cells = {"framework": "DeepSpeed", "notes": "ZeRO-3", "zero_stage": "2", **ALONE}
    assert {plan.zero_stage for plan in plans(**cells)} == {2}
    assert (Reading.UNREAD, "ZeRO-3") in readings(row(**cells))
    assert (Reading.UNREAD, "ZeRO-3") not in readings(row(**cells | {"zero_stage": "3"}))


@pytest.mark.parametrize(
    ("framework", "notes", "share", "reading"),
    [
        ("DeepSpeed", "ZeRO-3 offload", 1.0, Reading.TAKEN),
        ("DeepSpeed", "offload_optimizer=cpu", 1.0, Reading.TAKEN),
        ("Megatron-LM", "optimizer CPU offload", 1.0, Reading.TAKEN),
        ("Megatron-LM v3.0", "optimizer offload", 0.0, Reading.UNREAD),
        ("PyTorch FSDP", "CPU offload", 0.0, Reading.UNREAD),
        ("DeepSpeed", "ZeRO++", 0.0, Reading.UNPRICED),
    ],
)
def test_optimizers_on_the_host_are_read_where_a_framework_has_them(
    framework: str, notes: str, share: float, reading: Reading
) -> None:
    cells = {"framework": framework, "notes": notes, **ALONE}
    assert {plan.optimizer_offload for plan in plans(**cells)} == {share}
    assert {found for found, _ in readings(row(**cells))} == {reading}


@pytest.mark.parametrize(
    ("notes", "reduces", "gathers", "tensor"),
    [
        ("--overlap-grad-reduce; --overlap-param-gather; tp_comm_overlap=True", True, True, True),
        ("no overlap_grad_reduce; overlap_param_gather=false; tp-comm-overlap off", False, False, False),
        ("", True, True, False),
    ],
)
def test_switches_of_megatron_are_read_as_its_arguments_write_them(
    notes: str, reduces: bool, gathers: bool, tensor: bool
) -> None:
    cells = row(notes=notes)
    preset = job_of_row(cells).preset
    found = (preset.data_parallel.overlap_grad_reduce, preset.data_parallel.overlap_param_gather)
    assert (*found, preset.tensor_parallel.overlap) == (reduces, gathers, tensor)
    assert {reading for reading, _ in readings(cells)} <= {Reading.TAKEN}


@pytest.mark.parametrize(
    ("notes", "kind"),
    [("full AC", "full"), ("no activation checkpointing", "none"), ("selective recompute", "selective")],
)
def test_recomputation_is_read_of_words_where_no_column_says_it(notes: str, kind: str) -> None:
    assert {plan.recompute.value for plan in plans(notes=notes, recompute="unknown")} == {kind}
    assert {plan.recompute.value for plan in plans(notes=notes, recompute="none")} == {"none"}
