"""Where a priced number comes from. Never invent a number: every one carries one of these."""

from enum import IntEnum


class Origin(IntEnum):
    """Ordered from best to least known; the values index arrays of totals by origin."""

    MEASURED = 0
    EXTRAPOLATED = 1
    TRANSFERRED = 2
    MODELLED = 3
    DERIVED = 4
    CALIBRATED = 5
    ASSUMED = 6


ORIGIN_NAMES: tuple[str, ...] = tuple(origin.name.lower() for origin in Origin)

ORIGIN_MEANINGS: dict[Origin, str] = {
    Origin.MEASURED: "interpolated inside measured data",
    Origin.EXTRAPOLATED: "continued beyond measured data by latency, bandwidth and peak rate",
    Origin.TRANSFERRED: "measured on another GPU and scaled by the bound of the operation",
    Origin.MODELLED: "computed from the hardware spec, nothing measured",
    Origin.DERIVED: "computed from other priced numbers",
    Origin.CALIBRATED: "fitted to measured steps of the user's cluster",
    Origin.ASSUMED: "a stated assumption",
}
