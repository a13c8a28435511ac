"""The table that SimAI-Analytical writes (``EndToEnd.csv``): a summary and a line a row, times in microseconds.

Source: SimAI 1.6/1.7, ``Layer::report`` and ``Layer::compute_busbw``. Where it writes ``-nan`` for the bandwidth of a
collective that takes no time the cell is empty here.
"""

from collections.abc import Iterator

from spec.collectives import Collective
from spec.units import GIB
from workload.simai.closed_form.analytical import PrintedTimes, priced_rows
from workload.simai.closed_form.options import AnalyticalOptions
from workload.simai.closed_form.row_price import PassPrice, RowPrice, RowPricer
from workload.simai.closed_form.single_precision import single
from workload.simai.format import SimaiWorkload
from workload.simai.tokens import Column

# The order of the passes in a row, and the word that stands for each.
PASSES = ((Column.FORWARD, "fwd"), (Column.WEIGHT_GRAD, "wg"), (Column.INPUT_GRAD, "ig"))
RUN = "Analytical_test"
TITLES = (
    "File name, Expose DP comm, Expose DP_EP comm, Expose TP comm, Expose_EP_comm, Expose_PP_comm, bubble time, "
    "total comp, total exposed comm, Total time"
)


def summary_lines(times: PrintedTimes, name: str) -> tuple[str, str]:
    """The first two lines; ``name`` is the prefix that the file was asked for by."""
    parts = (
        *(times.dp_us, times.dp_ep_us, times.tp_us, times.ep_us, times.pp_us),
        *(times.bubble_us, times.compute_us, times.exposed_us),
    )
    total = times.total_us
    shares = [f"{each:.0f} ({each / total if total else 0.0:.2%})" for each in parts]
    return TITLES, ", ".join([name, *shares, f"{total:.0f}"])


def row_lines(workload: SimaiWorkload, options: AnalyticalOptions) -> Iterator[str]:
    """The titles of the rows, and a line for each."""
    pricer = RowPricer(header=options.world(workload.header), options=options)
    words = [word for _, word in PASSES]
    yield ",".join(
        [
            "layer_name",
            RUN,
            *(f"{word} compute" for word in words),
            *(f"{word} exposed comm" for word in words),
            *(f"{word} total comm,algbw,busbw" for word in words),
        ]
    )
    for row in priced_rows(workload, pricer):
        yield _line(row)


def _line(row: RowPrice) -> str:
    passes = [row.passes[column] for column, _ in PASSES]
    cells = [row.name, RUN]
    cells += [f"{each.compute_ns / 1000:.0f}" for each in passes]
    cells += [f"{each.exposed_ns / 1000:.0f}" for each in passes]
    for each in passes:
        cells += [f"{each.comm_ns / 1000:.0f}", *_bandwidths(each)]
    return ",".join(cells)


def _bandwidths(one: PassPrice) -> tuple[str, str]:
    """Algorithm and bus bandwidth (GiB/s) of a collective."""
    if one.collective is None:
        return "", "0.00"
    if not one.comm_ns:
        return "", ""
    algbw = single(one.size_bytes / (one.comm_ns / 1000) * 1e6 / GIB)
    factor = 2 if one.collective is Collective.ALL_REDUCE else 1
    busbw = single(algbw * factor * (one.ranks - 1) / one.ranks)
    return f"{algbw:.2f}", f"{busbw:.2f}"
