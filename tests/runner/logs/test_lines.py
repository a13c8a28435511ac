from runner.logs.log import epoch_line, operation_line, size_text
from workload.aicb.csv_workload import GeneralItem


def test_aicbs_line() -> None:
    item = GeneralItem(
        comm_type="all_reduce",
        comm_group="tp_group",
        msg_size=40 * 2**20,
        elapsed_ms=0.66,
        algbw=59.1,
        busbw=103.42,
    )
    assert operation_line(item, 0) == (
        "[RANK 0] comm op: all_reduce | comm group: tp_group | time (ms): 0.660 | msg size: 40.0 MB | "
        "algbw (GB): 59.10 | busbw (GB): 103.42"
    )


def test_a_computation_has_no_size() -> None:
    item = GeneralItem(comm_type="computation", shapes=((2, 3), (3, 4)), elapsed_ms=1.5)
    assert "comm group: None | time (ms): 1.500 | msg size: 0 |" in operation_line(item, 3)


def test_sizes_go_by_1024() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 3 * 2**29, 2**42)] == [
        *("0 B", "1023 B", "1.0 KB", "1.5 GB", "4096.0 GB")
    ]


def test_the_line_of_an_epoch() -> None:
    assert epoch_line(2, 12.5, 0) == "[RANK 0] --------epoch 2 | micro_step time 12.500 ---------"
