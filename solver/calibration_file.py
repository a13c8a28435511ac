"""Factors in a JSON file beside the profile they were fitted with."""

import json
from dataclasses import asdict, fields
from pathlib import Path

from solver.calibration import HIGHEST_EFFICIENCY, LOWEST_EFFICIENCY, Calibration, Fit
from spec.cluster.cluster import ClusterSpec
from spec.errors import ConfigError
from spec.replaced_file import replaced_file
from spec.text_file import MAX_FILE_BYTES, UnreadableFileError, read_file_text

SCHEMA = 2

LONGEST_S = 1e6
"""Of what a factor adds to a micro-batch or a step."""
WIDEST_STD = 3.0
"""Of the logarithm of a step: eight in ten within a factor of 47."""


def beside(profile: Path) -> Path:
    """Where factors fitted with a profile lie: data.pt has data.calibration.json."""
    return profile.with_suffix(".calibration.json")


def write_calibration(path: Path, fit: Fit, cluster: ClusterSpec) -> None:
    """Write the factors with the cluster they hold for; whole or not at all."""
    record = {
        "schema": SCHEMA,
        "cluster": cluster.name,
        "gpu": cluster.gpu.name,
        "steps": len(fit.left_out),
        "leave_one_out_error": fit.left_out_error,
        "factors": asdict(fit.factors),
    }
    with replaced_file(path) as handle:
        json.dump(record, handle, indent=2)
        handle.write("\n")


def read_calibration(path: Path, cluster: ClusterSpec) -> Calibration:
    """The factors of a file, for the cluster they were fitted on.

    Raises ConfigError for a file that cannot be read, is no calibration or is another cluster's.
    """
    where = str(path)
    try:
        record = json.loads(read_file_text(path, MAX_FILE_BYTES))
    except (UnreadableFileError, ValueError, RecursionError) as error:
        raise ConfigError(
            where="--calibration",
            key="calibration",
            value=where,
            allowed=f"a file that python -m solver.calibrate wrote: {error}",
        ) from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        found = record.get("schema") if isinstance(record, dict) else None
        raise ConfigError(where=where, key="schema", value=found, allowed=f"a calibration of schema {SCHEMA}")
    for key, own in (("cluster", cluster.name), ("gpu", cluster.gpu.name)):
        if record.get(key) != own:
            raise ConfigError(
                where=where, key=key, value=record.get(key), allowed=f"factors of {own}: its own calibration"
            )
    return _factors(where, record.get("factors"))


def _factors(where: str, values: object) -> Calibration:
    """Checked numbers; every factor must be there and within its bounds."""
    names = [field.name for field in fields(Calibration)]
    if not isinstance(values, dict) or set(values) != set(names):
        raise ConfigError(where=where, key="factors", value=values, allowed=f"exactly {', '.join(names)}")
    checked: dict[str, float] = {}
    for name in names:
        low, high = bounds(name)
        value = values[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high:
            raise ConfigError(
                where=where, key=name, value=value, allowed=f"a number from {low:g} to {high:g}"
            )
        checked[name] = float(value)
    return Calibration(**checked)


def bounds(name: str) -> tuple[float, float]:
    """Lowest and highest value of a factor; the fitted efficiencies touch theirs only by rounding."""
    if name.endswith("_efficiency"):
        return LOWEST_EFFICIENCY * (1 - 1e-9), HIGHEST_EFFICIENCY * (1 + 1e-9)
    return (0.0, 1.0) if name == "overlap" else (0.0, LONGEST_S if name.endswith("_s") else WIDEST_STD)
