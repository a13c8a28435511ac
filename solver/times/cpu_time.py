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
from ops.op import GroupedGemm, Lane, Op
from solver.times.op_times import Pricer, TimedOp
from solver.times.step_parts import Share
from spec.arrays import BoolArray, FloatArray, bools, floats
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
        ended_s = np.maximum(
            np.maximum(device_s, begun_s) + one.device_s, host_s + one.device_s / one.launches
        )
        device_s = np.where(one.device_s > 0.0, ended_s, device_s)
    return np.maximum(host_s, device_s)


FREE_LANES = (Lane.PREFETCH, Lane.COPY)
"""What runs beside the whole pass: it goes on while the device waits for the host, so what is left of it and what the
host is late are not added up."""


def host_shares(
    pricer: Pricer, job: JobSpec, layout: Layout, passes: Sequence[tuple[list[TimedOp], list[Share]]]
) -> list[Share]:
    """For the passes of a micro-batch in order (forward and backward, or forward and the two halves of a split
    backward), each as timed operations and what the device waits for: the seconds by which the host is
    later, as one share of the part ``host`` each. What runs ahead (FREE_LANES) delays nothing that is issued."""
    issued = [_issued(pricer, job, layout, timed, shares) for timed, shares in passes]
    nothing = np.zeros(len(layout))
    costs = [np.sum([one.host_s for one in ops], axis=0) + nothing for ops in issued]
    busy = [np.sum([share.seconds for share in shares], axis=0) + nothing for _, shares in passes]
    paced = [
        between_waits_s(ops) if any(one.waits for one in ops) else host
        for ops, host in zip(issued, costs, strict=True)
    ]
    late = [np.maximum(pace - device, 0.0) for pace, device in zip(paced, busy, strict=True)]
    apart = _waits_for_device(layout, [one.op for timed, _ in passes for one in timed])
    apart = apart | job.preset.host.checks_numbers
    left = np.maximum(np.sum(costs, axis=0) - np.sum(busy, axis=0), 0.0)
    shares = []
    for index, alone in enumerate(late):
        joined = left if index == len(late) - 1 else np.minimum(alone, left)
        left = left - joined
        shares.append(host_share(pricer, np.where(apart, alone, joined)))
    return shares


def issuing_s(
    pricer: Pricer, job: JobSpec, layout: Layout, passes: Sequence[tuple[list[TimedOp], list[Share]]]
) -> list[FloatArray]:
    """Seconds (N) that the host needs to issue each pass, whether the device waits for it or not."""
    issued = [_issued(pricer, job, layout, timed, shares) for timed, shares in passes]
    nothing = np.zeros(len(layout))
    return [np.asarray(np.sum([one.host_s for one in ops], axis=0) + nothing) for ops in issued]


def _waits_for_device(layout: Layout, ops: Sequence[Op]) -> BoolArray:
    """Rows whose host waits for the device within a micro-batch."""
    return bools((layout.pp > 1) | any(op.synchronises for op in ops))


def _issued(
    pricer: Pricer, job: JobSpec, layout: Layout, timed: list[TimedOp], shares: list[Share]
) -> list[Issued]:
    """Host and device of every operation of a pass; one that takes no time does not run."""
    call_s = float(pricer.cost_model.cpu_s("call").seconds[0])
    launch_s = float(pricer.cost_model.cpu_s("launch").seconds[0])
    hooks = [term for term in HOOKS if term.applies(job)]
    found = []
    for one, share in zip(timed, shares, strict=True):
        work = cpu_overhead(one.op, job)
        calls = work.calls + sum(term.calls(one.op, job, layout) for term in hooks) * one.op.repeat
        host_s = np.where(one.seconds > 0.0, calls * call_s + work.launches * launch_s, 0.0)
        products = one.op.groups if isinstance(one.op, GroupedGemm) else 1
        found.append(
            Issued(
                host_s=host_s,
                device_s=np.zeros_like(share.seconds) if one.op.lane in FREE_LANES else share.seconds,
                launches=np.maximum(floats(one.op.repeat * products), 1.0),
                waits=one.op.synchronises,
            )
        )
    return found


def host_share(pricer: Pricer, seconds: FloatArray) -> Share:
    """Seconds of the host as one share of the part ``host``."""
    call = pricer.cost_model.cpu_s("call")
    return Share(
        part="host",
        family="host",
        seconds=seconds,
        relative_std=np.full(len(seconds), float(call.relative_std[0])),
        origin=np.full(len(seconds), int(call.origin[0]), dtype=np.int64),
    )
