"""The words by which runs say how they cut sequences."""

import pytest

from benchmarks.accuracy_rows.clauses import Reading, readings
from benchmarks.accuracy_rows.sequences_cut import context_parallel_of
from tests.benchmarks.made_up_rows import row


@pytest.mark.parametrize(
    ("framework", "notes", "kind"),
    [
        ("Megatron-Core", "", "ring"),
        ("Megatron-Core", "cp_comm_type=a2a", "all_to_all"),
        ("Megatron-Core", "cp_comm_type: a2a", "all_to_all"),
        ("Megatron-Core", "CP a2a", "all_to_all"),
        ("Megatron-Core", "cp_comm_type=all_gather", "all_gather"),
        ("Megatron-Core", "cp_comm_type p2p", "ring"),
        ("XTuner (HF + DeepSpeed, Ulysses)", "", "all_to_all"),
        ("Megatron-DeepSpeed", "", "all_to_all"),
        ("Megatron-DeepSpeed", "ring attention", "ring"),
        ("torchtitan", "", "all_gather"),
        ("torchtitan", "context_parallel_rotate_method=alltoall", "ring"),
        ("torchtitan", "ring attention", "ring"),
        ("HF Trainer", "", "all_gather"),
    ],
)
def test_sequences_are_cut_as_it_is_said_else_as_the_framework_does(
    framework: str, notes: str, kind: str
) -> None:
    one = row(framework=framework, notes=notes, cp="8")
    assert context_parallel_of(one) == kind
    assert all(reading is Reading.TAKEN for reading, _ in readings(one))


def test_a_hierarchical_exchange_is_not_read_as_a_plain_one() -> None:
    one = row(framework="Megatron-Core", notes="cp_comm_type=a2a+p2p", cp="8")
    assert context_parallel_of(one) == "ring"
    assert Reading.UNREAD in {reading for reading, _ in readings(one)}
