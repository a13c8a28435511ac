"""CPU time of issuing work: where the CPU is slower than the GPU, it sets the pace.

Launches are asynchronous: the host issues work ahead of the device, and what counts is which of the two needs longer
between two points where the host waits for the device. Such points are

- a message between pipeline stages: Megatron-LM synchronises after each (``batch_p2p_sync``), so every
  pass of a stage is a stretch of its own;
- the loss of a micro-batch, where it is checked before its backward (Megatron-Core pretrain_gpt.py, ``loss_func``);
- the experts' token counts, which the host reads in the forward before it can size the exchange
  (Megatron-Core token_dispatcher.py, ``_maybe_dtoh_and_synchronize``), and an offset of the experts' activation, copied to the
  device in every call; nothing is issued ahead at that moment (round_s);
- the look-up of an expert's tokens where experts run one after another (ops/experts/loop.py), once for each expert;
- the largest position, where it is read before each rotary embedding (InternEvo internlm/model/modules/embedding.py,
  ``_update_cos_sin_cache``: ``indexes.max().item()``).

Without any of these, forward and backward of a micro-batch are one stretch: a backward that keeps the device
busy for longer than it takes to issue lets the host run ahead into the next forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from ops.cpu_overhead import HOOKS, cpu_overhead
from ops.layout import Layout
from ops.op import GroupedGemm, Lane
from profdb.queries import NOTHING_CARRIED
from solver.times.op_times import OpTimer, TimedOp
from solver.times.step_parts import Share
from spec.arrays import FloatArray, IntArray, floats
from spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOp:
    """One operation as host and device see it, for N rows: seconds of the host to issue it, seconds that the device
    runs or waits for it, the equal launches that both are spread over, whether the host waits for the device before
    it, and the times that it runs, each time with a wait."""

    host_s: FloatArray
    device_s: FloatArray
    launches: FloatArray
    waits: bool = False
    repeat: int | IntArray | FloatArray = 1


def layer_round_s(operations: Sequence[HostOp]) -> FloatArray:
    """Returns the seconds of one layer of many equal ones in a row, for N rows, where the host waits for the device in
    each: from the first operation that waits to the same operation of the next layer. Raises ValueError where none
    waits.

    A launch runs when it is issued and the one before has ended. So the last of n equal launches ends no earlier than
    the device's seconds after what ran before, than those seconds after the first launch was issued, and than one
    launch after the last was issued."""
    first = next((index for index, one in enumerate(operations) if one.waits), None)
    if first is None:
        raise ValueError("a layer in which the host never waits has no round")
    # When the host has issued, and the device has run, everything so far.
    host_s = np.zeros(1)
    device_s = np.zeros(1)
    for one in (*operations[first:], *operations[:first]):
        if one.waits:
            host_s = np.maximum(host_s, device_s)
        first_issue_s = host_s + one.host_s / one.launches
        host_s = host_s + one.host_s
        end_s = np.maximum(np.maximum(device_s, first_issue_s) + one.device_s, host_s + one.device_s / one.launches)
        device_s = np.where(one.device_s > 0.0, end_s, device_s)
    return np.maximum(host_s, device_s)


FREE_LANES = (Lane.PREFETCH, Lane.COPY)
"""Lanes that run beside the whole pass: they go on while the device waits for the host, so their exposed seconds and
the host's delay are not added up."""


def host_shares(
    op_timer: OpTimer, job: JobSpec, layout: Layout, passes: Sequence[tuple[list[TimedOp], list[Share]]]
) -> list[Share]:
    """Returns the seconds by which the host is later than the device in each pass of a micro-batch, as one share of the
    part ``host`` a pass.

    ``passes`` are forward and backward, or forward and the two halves of a split backward, each as timed operations and
    the device's seconds for them. What runs beside the pass (FREE_LANES) delays nothing that is issued.
    """
    # By pass: the host's delay in it alone, the host's seconds to issue it, and the device's seconds.
    late_s: list[FloatArray] = []
    issuing: list[FloatArray] = []
    busy: list[FloatArray] = []
    # Rows whose host waits for the device within a micro-batch: each pass is a stretch of its own.
    apart = (layout.pp > 1) | job.preset.host.checks_numbers
    for timed, shares in passes:
        ops = _host_ops(op_timer, job, layout, timed, shares)
        waits = any(one.waits for one in ops)
        issuing.append(np.sum([one.host_s for one in ops], axis=0) + np.zeros(len(layout)))
        busy.append(np.sum([share.seconds for share in shares], axis=0) + np.zeros(len(layout)))
        pass_s = layer_round_s(ops) if waits else issuing[-1]
        late_s.append(np.maximum(pass_s - busy[-1], 0.0))
        apart = apart | waits
    # Where the host never waits only the sum over all passes counts: a slow forward is made up for by a long backward.
    # That delay is written into the passes that are late by themselves, the rest into the last one.
    left_s = np.maximum(np.sum(issuing, axis=0) - np.sum(busy, axis=0), 0.0)
    call = op_timer.cost_model.cpu_s("call")
    result = []
    for index, alone_s in enumerate(late_s):
        of_sum_s = left_s if index == len(late_s) - 1 else np.minimum(alone_s, left_s)
        left_s = left_s - of_sum_s
        result.append(
            Share(
                part="host",
                family="host",
                seconds=np.where(apart, alone_s, of_sum_s),
                relative_std=np.full(len(layout), float(call.relative_std[0])),
                origin=np.full(len(layout), int(call.origin[0]), dtype=np.int64),
                carried_std=NOTHING_CARRIED,
            )
        )
    return result


def issuing_s(
    op_timer: OpTimer, job: JobSpec, layout: Layout, passes: Sequence[tuple[list[TimedOp], list[Share]]]
) -> list[FloatArray]:
    """Returns the seconds (N) that the host needs to issue each pass, whether the device waits for it or not."""
    host_ops = [_host_ops(op_timer, job, layout, timed, shares) for timed, shares in passes]
    return [np.sum([one.host_s for one in ops], axis=0) + np.zeros(len(layout)) for ops in host_ops]


def _host_ops(
    op_timer: OpTimer, job: JobSpec, layout: Layout, timed: list[TimedOp], shares: list[Share]
) -> list[HostOp]:
    """Returns host and device seconds of every operation of a pass; an operation that takes no time is not issued."""
    call_s = float(op_timer.cost_model.cpu_s("call").seconds[0])
    launch_s = float(op_timer.cost_model.cpu_s("launch").seconds[0])
    result = []
    for one, share in zip(timed, shares, strict=True):
        work = cpu_overhead(one.op, job)
        calls = work.calls + sum(term.calls(one.op, job, layout) for term in HOOKS if term.applies(job)) * one.op.repeat
        host_s = np.where(one.seconds > 0.0, calls * call_s + work.launches * launch_s, 0.0)
        products = one.op.groups if isinstance(one.op, GroupedGemm) else 1
        result.append(
            HostOp(
                repeat=one.op.repeat,
                host_s=host_s,
                device_s=np.zeros_like(share.seconds) if one.op.lane in FREE_LANES else share.seconds,
                launches=np.maximum(floats(one.op.repeat * products), 1.0),
                waits=one.op.synchronises,
            )
        )
    return _joined_loops(result) if job.preset.layers.looped_experts else result


def _joined_loops(operations: list[HostOp]) -> list[HostOp]:
    """Returns the operations with those of a loop joined into one: operations that run equally often, among them one that
    waits. A turn of the loop is a round, and the host has issued no more than that turn."""
    result: list[HostOp] = []
    for repeat, group in groupby(operations, key=lambda one: tuple(np.atleast_1d(one.repeat))):
        members, turns = list(group), floats(np.array(repeat))
        if max(repeat) <= 1 or not any(one.waits for one in members):
            result += members
            continue
        turn = [
            replace(
                one,
                host_s=one.host_s / turns,
                device_s=one.device_s / turns,
                launches=np.maximum(one.launches / turns, 1.0),
            )
            for one in members
        ]
        # The device has nothing left to do at the end of the last round.
        result.append(HostOp(host_s=layer_round_s(turn) * turns, device_s=floats(0.0), launches=turns, waits=True))
    return result
