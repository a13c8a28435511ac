"""What a search finds beyond degrees (layers dealt anew, parts or layers run again, layers on the host) in
every framework's settings: said, or refused in a line that names it; never left out."""

from pathlib import Path
from typing import Any

import pytest

from ops.recompute.layers import Recompute
from solver.plans.plan_table import Plan
from spec.errors import ExportError
from spec.readers.read_config import read_config
from tests.solver.questions import ROOT
from tests.workload.settings.asking import asked
from workload.launch_files import EXPORTERS, write_launch_files
from workload.settings.frameworks import WRITTEN

STAGED: dict[str, Any] = {"pp": 2, "num_micro": 4, "stage_layout": "Et*14|t*18L"}
FORMS: dict[str, dict[str, Any]] = {
    "layout": STAGED,
    "chunks": {**STAGED, "vpp": 2, "stage_layout": "Et*7|t*8|t*9|t*8L"},
    "modules": {**STAGED, "recompute_modules": ("mlp",)},
    "layers": {**STAGED, "recompute": Recompute.BLOCK, "num_recompute_layers": 3},
    "alone": {"recompute": Recompute.BLOCK, "num_recompute_layers": 8},
    "host": {"offloaded_layers": 3},
}
LAYOUT, PARTS = "pipeline-model-parallel-layout Et*14|t*18L", "recompute-modules mlp"
SOME = ("recompute-granularity full", "recompute-method block", "recompute-num-layers 3")
MEGATRON = {
    "layout": (LAYOUT,),
    "chunks": ("pipeline-model-parallel-layout Et*7|t*8|t*9|t*8L",),
    "modules": (LAYOUT, "recompute-granularity selective", PARTS),
    "layers": (LAYOUT, *SOME),
    "alone": ("recompute-num-layers 8",),
}
SAID: dict[str, dict[str, tuple[str, ...]]] = {
    "megatron": {**MEGATRON, "host": ("cpu-offloading-num-layers 3",)},
    "swift": MEGATRON,
    # Modules by name: 14 layers on the first stage, 7 on its first chunk.
    "torchtitan": {"layout": ("'layers.13'], ['layers.14'",), "chunks": ("'layers.6'], ['layers.7'",)},
    # A share of all layers: 8 of 32.
    "internevo": {"alone": ("'checkpoint': 0.25,",)},
}
NAMES = {
    "layout": "layout|setting for pp",
    "chunks": "layout|vpp|virtual|setting for pp",
    "modules": "parts of layers|recompute.modules|layout",
    "layers": "recomput|layout|setting for pp",
    "alone": "recomput|activation",
    "host": "host|offload",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("exporter", [name for name in EXPORTERS if WRITTEN[name].frameworks])
def test_what_is_found_is_written_or_refused_by_name(exporter: str, form: str, tmp_path: Path) -> None:
    preset = WRITTEN[exporter].frameworks[0]
    plan = Plan(strategy="mtp", preset=preset, **FORMS[form])
    question = asked(plan, model=read_config(ROOT / "configs" / "8B_llama3.py").model)
    path = tmp_path / "settings"
    words = SAID.get(exporter, {}).get(form)
    if words is None and exporter != "bridge":
        with pytest.raises(ExportError, match=NAMES[form]):
            write_launch_files(question, plan, {exporter: path})
        assert not path.exists()
        return
    write_launch_files(question, plan, {exporter: path})
    text = path.read_text()
    settled = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    if exporter == "bridge":
        assert FIELDS[form] <= {
            line.split("=")[0].strip().rpartition(".")[2] for line in settled.splitlines()
        }
        return
    for word in words or ():
        assert word.replace("-", "_") in settled.replace("-", "_")


FIELDS = {
    "layout": {"pipeline_model_parallel_layout"},
    "chunks": {"pipeline_model_parallel_layout"},
    "modules": {"pipeline_model_parallel_layout", "recompute_modules", "recompute_granularity"},
    "layers": {"pipeline_model_parallel_layout", "recompute_num_layers", "recompute_method"},
    "alone": {"recompute_num_layers", "recompute_method"},
    "host": {"cpu_offloading_num_layers"},
}
