"""What SimAI-Analytical is told about the world, and what is wrong with it."""

from dataclasses import dataclass, replace

from workload.simai.closed_form.busbw_yaml import BusBandwidths
from workload.simai.closed_form.network import SimaiNetwork
from workload.simai.closed_form.ratio import RatioTables
from workload.simai.format import SimaiHeader
from workload.workload_error import WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticalOptions:
    """``gpus``: the world (-g; the header's when None). Overlaps are the hidden shares 0..1 of each
    group's communication (-dp_o, -tp_o, -ep_o, -pp_o; the last is 1 by default as upstream, so that
    pipeline transfers cost nothing). ``busbw``: bandwidths that go before the network's."""

    network: SimaiNetwork
    gpus: int | None = None
    ratios: RatioTables | None = None
    busbw: BusBandwidths | None = None
    dp_overlap: float = 0.0
    tp_overlap: float = 0.0
    ep_overlap: float = 0.0
    pp_overlap: float = 1.0

    def world(self, header: SimaiHeader) -> SimaiHeader:
        """The header with this world; WorkloadError for options that make no sense."""
        for flag, share in {
            "-dp_o": self.dp_overlap,
            "-tp_o": self.tp_overlap,
            "-ep_o": self.ep_overlap,
            "-pp_o": self.pp_overlap,
        }.items():
            if not 0 <= share <= 1:
                raise WorkloadError(f"{flag} = {share}: a share of 0 to 1")
        gpus = header.all_gpus if self.gpus is None else self.gpus
        stage = header.tp * header.pp
        if gpus < 1 or gpus % stage:
            raise WorkloadError(
                f"-g {gpus}: must be a multiple of tp x pp = {header.tp} x {header.pp} = {stage}"
            )
        return replace(header, all_gpus=gpus)
