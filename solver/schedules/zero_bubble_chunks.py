"""Zero-bubble schedules of several chunks a stage, as torch.distributed.pipelining runs them.

Source: Qi et al. 2023 (arXiv 2401.10241) and 2024 (arXiv 2405.15362 sec. 3, V-shaped building blocks), in the
orders of PyTorch 2.11, schedules.py: ScheduleInterleavedZeroBubble and ScheduleZBVZeroBubble,
``_calculate_single_rank_operations``. A backward of the input's gradient keeps its graph (_backward.py,
stage_backward_input: retain_graph), so what a forward saved stays until the weights' gradient is there.
"""

import numpy as np

from solver.schedules.work import Kind, Work
from spec.arrays import FloatArray, IntArray


def interleaved(shape: tuple[int, int, int]) -> list[list[Work]]:
    """Interleaved 1F1B with half its warm-up; stage s puts off s weight gradients, as ZB-H1 does."""
    return [_interleaved_order(shape, stage) for stage in range(shape[0])]


def _interleaved_order(shape: tuple[int, int, int], stage: int) -> list[Work]:
    pp, vpp, num_micro = shape
    turns = max(num_micro // pp, 1)
    in_turn = -(-num_micro // turns)
    table = [
        (chunk, micro)
        for first in range(0, num_micro, in_turn)
        for chunk in range(vpp)
        for micro in range(first, min(first + in_turn, num_micro))
    ]
    ahead = min((vpp - 1) * in_turn + pp - 1 - stage, len(table))
    forwards = [Work(Kind.FORWARD, chunk, micro) for chunk, micro in table]
    backwards = [Work(Kind.BACKWARD, vpp - 1 - chunk, micro) for chunk, micro in table]
    weights = [work._replace(kind=Kind.WEIGHT) for work in backwards]
    order = forwards[:ahead]
    for index, backward in enumerate(backwards):
        order += forwards[ahead + index : ahead + index + 1]
        order.append(backward)
        if index >= stage:
            order.append(weights[index - stage])
    return order + weights[max(len(weights) - stage, 0) :]


def zero_bubble_v(shape: tuple[int, int, int]) -> list[list[Work]]:
    """ZB-V: stage s holds virtual stages s and 2 pp - 1 - s, so the last forward of a micro-batch and its
    first backward are on the first stage. Without a bubble where forward and both halves of the backward take
    equally long."""
    pp, _, num_micro = shape
    # Orders of fewer micro-batches than fill the pipeline are those of as many, without what is not there.
    orders = (_v_order(pp, stage, max(2 * pp - 1, num_micro)) for stage in range(pp))
    return [[work for work in order if work.micro < num_micro] for order in orders]


def _v_order(pp: int, stage: int, num_micro: int) -> list[Work]:
    order: list[Work] = []
    done = dict.fromkeys([(kind, chunk) for kind in Kind for chunk in (0, 1)], 0)

    def run(chunk: int, *kinds: Kind) -> None:
        for kind in kinds:
            order.append(Work(kind, chunk, done[kind, chunk]))
            done[kind, chunk] += 1

    for _ in range(2 * (pp - stage) - 1):
        run(0, Kind.FORWARD)
    for _ in range(stage):
        run(1, Kind.FORWARD)
        run(0, Kind.FORWARD)
    for _ in range(pp - stage):
        run(1, Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT)
    while done[Kind.FORWARD, 1] < num_micro:
        if done[Kind.FORWARD, 0] < num_micro:
            run(0, Kind.FORWARD)
        run(0, Kind.BACKWARD, Kind.WEIGHT)
        run(1, Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT)
    for _ in range(stage):
        run(0, Kind.BACKWARD)
        run(1, Kind.BACKWARD)
    for _ in range(pp - stage):
        run(0, Kind.BACKWARD, Kind.WEIGHT)
    for chunk in (1, 0):
        while done[Kind.WEIGHT, chunk] < num_micro:
            run(chunk, Kind.WEIGHT)
    return order


def in_flight_chunks(position: IntArray, pp: IntArray, vpp: IntArray, num_micro: IntArray) -> FloatArray:
    """pp micro-batches on every stage: (vpp - 1) pp + pp - 1 - s forwards before the first backward and the
    one between, and s whose weight gradients are put off; of a V 2 pp - s of the first chunk and s of the
    second."""
    return np.asarray(np.minimum(pp, num_micro) + 0.0 * position, dtype=np.float64)
