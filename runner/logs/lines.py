"""Operations of a log as AICB prints them, one line each."""

from workload.aicb.csv_workload import COMPUTATION, GeneralItem

STEP = 1024


def operation_line(item: GeneralItem, rank: int) -> str:
    """``[RANK 0] comm op: all_reduce | comm group: tp_group | time (ms): 0.66 | msg size: 40.0 MB | ...``; a
    computation has no size and no bandwidth."""
    size = "0" if item.comm_type == COMPUTATION else size_text(item.msg_size)
    return (
        f"[RANK {rank}] comm op: {item.comm_type} | comm group: {item.comm_group or 'None'} | "
        f"time (ms): {item.elapsed_ms or 0.0:.3f} | msg size: {size} | "
        f"algbw (GB): {item.algbw or 0.0:.2f} | busbw (GB): {item.busbw or 0.0:.2f}"
    )


def epoch_line(epoch: int, elapsed_ms: float, rank: int) -> str:
    """What ends an epoch; 0 is initialisation."""
    return f"[RANK {rank}] --------epoch {epoch} | micro_step time {elapsed_ms:.3f} ---------"


def size_text(size_bytes: int) -> str:
    """Bytes in steps of 1024, as AICB writes them: ``512 B``, ``40.0 MB``."""
    if size_bytes < STEP:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("KB", "MB", "GB"):
        size /= STEP
        if size < STEP or unit == "GB":
            break
    return f"{size:.1f} {unit}"
