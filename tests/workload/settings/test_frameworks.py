"""Which exporter writes plans of which framework."""

import pytest

from spec.errors import ExportError
from spec.presets.registry import PRESETS
from workload.settings.frameworks import WRITTEN, check_framework


@pytest.mark.parametrize(
    ("exporter", "preset", "wanted"),
    [
        ("megatron", "internevo", "megatron or zero-bubble"),
        ("deepspeed", "megatron", "deepspeed"),
        ("internevo", "fsdp", "internevo"),
    ],
)
def test_an_exporter_writes_plans_of_its_own_frameworks(exporter: str, preset: str, wanted: str) -> None:
    with pytest.raises(ExportError, match=f"--export_{exporter}: .* --framework {wanted}"):
        check_framework([exporter], preset)
    check_framework(["trace"], preset)
    for framework in WRITTEN[exporter].frameworks:
        check_framework([exporter], framework)


def test_frameworks_are_presets() -> None:
    assert {preset for one in WRITTEN.values() for preset in one.frameworks} <= PRESETS.keys()
