"""CPU time of issuing work: where the host is slower than the device, it sets the pace.

Launches are asynchronous: the host issues work ahead of the device, and what counts is which of the two
needs longer for a stretch of work between two points where the host waits for the device. Such points are

- a message between pipeline stages: Megatron-LM synchronises after each (``batch_p2p_sync``), so every
  pass of a stage is a stretch of its own;
- the loss of a micro-batch, where it is checked before its backward (Megatron-Core pretrain_gpt.py, ``loss_func``);
- the experts' token counts, which the host reads in the forward before it can size the exchange
  (Megatron-Core token_dispatcher.py, ``_maybe_dtoh_and_synchronize``), and an offset of the experts' activation, copied to the
  device in every call; nothing is issued ahead at that moment (between_waits_s);
- the largest position, where it is read before each rotary embedding (InternEvo internlm/model/modules/embedding.py,
  ``_update_cos_sin_cache``: ``indexes.max().item()``).

Without any of these, forward and backward of a micro-batch are one stretch: a backward that keeps the device
busy for longer than it takes to issue lets the host run ahead into the next forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ops.cpu_overhead import HOOKS, cpu_overhead
from ops.layout import Layout
from ops.op import GroupedGemm, Lane
from profdb.queries import NOTHING_CARRIED
from solver.times.op_times import OpTimer, TimedOp
from solver.times.step_parts import Share
from spec.arrays import FloatArray, floats
from spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """One operation for N rows: seconds of the host for it, seconds the device waits for it, the equal launches that
    both are spread over, and whether the host waits for the device before it."""

    host_s: FloatArray
    device_s: FloatArray
    launches: FloatArray
    waits: bool = False


def between_waits_s(operations: Sequence[Issued]) -> FloatArray:
    """Seconds from one wait to the next for layers one after another, of N rows; the first operation that
    waits begins the round, at every further one the host waits until the device is through. Raises ValueError
    where none waits.

    A launch runs when it is issued and the one before has ended: of n equal launches the last ends no earlier than
    the device's time after what ran before, than the first one's issue and the device's time, and than the last
    one's issue and one launch.
    """
    first = next((index for index, one in enumerate(operations) if one.waits), None)
    if first is None:
        raise ValueError("a layer in which the host never waits has no round")
    host_s = np.zeros(1)
    device_s = np.zeros(1)
    for one in (*operations[first:], *operations[:first]):
        if one.waits:
            host_s = np.maximum(host_s, device_s)
        begun_s = host_s + one.host_s / one.launches
        host_s = host_s + one.host_s
        ended_s = np.maximum(np.maximum(device_s, begun_s) + one.device_s, host_s + one.device_s / one.launches)
        device_s = np.where(one.device_s > 0.0, ended_s, device_s)
    return np.maximum(host_s, device_s)


FREE_LANES = (Lane.PREFETCH, Lane.COPY)
"""What runs beside the whole pass: it goes on while the device waits for the host, so what is left of it and what the
host is late are not added up."""


def host_shares(
    op_timer: OpTimer, job: JobSpec, layout: Layout, passes: Sequence[tuple[list[TimedOp], list[Share]]]
) -> list[Share]:
    """For the passes of a micro-batch in order (forward and backward, or forward and the two halves of a split
    backward), each as timed operations and what the device waits for: the seconds by which the host is
    later, as one share of the part ``host`` each. What runs ahead (FREE_LANES) delays nothing that is issued."""
    late_s: list[FloatArray] = []
    issuing: list[FloatArray] = []
    busy: list[FloatArray] = []
    # Rows whose host waits for the device within a micro-batch: each pass is a stretch of its own.
    apart = (layout.pp > 1) | job.preset.host.checks_numbers
    for timed, shares in passes:
        issued = _issued(op_timer, job, layout, timed, shares)
        waits = any(one.waits for one in issued)
        issuing.append(np.sum([one.host_s for one in issued], axis=0) + np.zeros(len(layout)))
        busy.append(np.sum([share.seconds for share in shares], axis=0) + np.zeros(len(layout)))
        paced_s = between_waits_s(issued) if waits else issuing[-1]
        late_s.append(np.maximum(paced_s - busy[-1], 0.0))
        apart = apart | waits
    left_s = np.maximum(np.sum(issuing, axis=0) - np.sum(busy, axis=0), 0.0)
    call = op_timer.cost_model.cpu_s("call")
    result = []
    for index, alone_s in enumerate(late_s):
        joined_s = left_s if index == len(late_s) - 1 else np.minimum(alone_s, left_s)
        left_s = left_s - joined_s
        result.append(
            Share(
                part="host",
                family="host",
                seconds=np.where(apart, alone_s, joined_s),
                relative_std=np.full(len(layout), float(call.relative_std[0])),
                origin=np.full(len(layout), int(call.origin[0]), dtype=np.int64),
                carried_std=NOTHING_CARRIED,
            )
        )
    return result


def issuing_s(
    op_timer: OpTimer, job: JobSpec, layout: Layout, passes: Sequence[tuple[list[TimedOp], list[Share]]]
) -> list[FloatArray]:
    """Seconds (N) that the host needs to issue each pass, whether the device waits for it or not."""
    issued = [_issued(op_timer, job, layout, timed, shares) for timed, shares in passes]
    return [np.sum([one.host_s for one in ops], axis=0) + np.zeros(len(layout)) for ops in issued]


def _issued(op_timer: OpTimer, job: JobSpec, layout: Layout, timed: list[TimedOp], shares: list[Share]) -> list[Issued]:
    """Host and device of every operation of a pass; one that takes no time does not run."""
    call_s = float(op_timer.cost_model.cpu_s("call").seconds[0])
    launch_s = float(op_timer.cost_model.cpu_s("launch").seconds[0])
    result = []
    for one, share in zip(timed, shares, strict=True):
        work = cpu_overhead(one.op, job)
        calls = work.calls + sum(term.calls(one.op, job, layout) for term in HOOKS if term.applies(job)) * one.op.repeat
        host_s = np.where(one.seconds > 0.0, calls * call_s + work.launches * launch_s, 0.0)
        products = one.op.groups if isinstance(one.op, GroupedGemm) else 1
        result.append(
            Issued(
                host_s=host_s,
                device_s=np.zeros_like(share.seconds) if one.op.lane in FREE_LANES else share.seconds,
                launches=np.maximum(floats(one.op.repeat * products), 1.0),
                waits=one.op.synchronises,
            )
        )
    return result
