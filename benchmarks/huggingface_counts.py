"""Does every reader of a Hugging Face config count the parameters of transformers' own model?

    python benchmarks/huggingface_counts.py [--table FILE] [--write] [--only WORDS]

FILE (default tests/spec/readers/huggingface/counts.json) lists models: ``says``, a config with the fewest keys that the
reader needs, all others being the class's defaults; ``parameters`` of transformers' model of it on the meta device; and
``buffers``, elements of buffers that count as parameters, because published totals include routers' score corrections.
Each config is read as it is and as transformers writes it out. Both must give the same model, with the same count. --write
updates the file. It needs transformers, unlike the rest of the project:

    python -m venv --system-site-packages .venv-transformers && .venv-transformers/bin/pip install transformers

Exits with 1 when a count differs.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from spec.errors import ConfigError  # noqa: E402
from spec.files import atomic_file  # noqa: E402
from spec.model import ModelSpec  # noqa: E402
from spec.parameters import num_parameters  # noqa: E402
from spec.readers.read_config import read_config  # noqa: E402

TABLE = ROOT / "tests" / "spec" / "readers" / "huggingface" / "counts.json"
SAME_CLASS = {"kimi_k2": "deepseek_v3"}
"""Types whose class is published with their weights and has the structure of one of transformers' classes."""
COUNTED_BUFFERS = ("e_score_correction_bias",)
NOT_SHAPES = ("blocks", "source", "rope", "max_positions", "assumptions")
"""Fields of ModelSpec that may differ between the short and the long config: learned positions are counted anyway, and MTP
blocks are in a model's own file but not in transformers' models."""


def transformers_count(says: dict[str, Any]) -> tuple[int, dict[str, int], dict[str, Any]]:
    """Parameters of transformers' model, elements of the buffers that count by name, and the long config."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = says["model_type"]
    values = {key: value for key, value in says.items() if key != "model_type"}
    config = CONFIG_MAPPING[SAME_CLASS.get(model_type, model_type)](**values)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    buffers: dict[str, int] = {}
    for name, buffer in model.named_buffers():
        last = name.rpartition(".")[2]
        if last in COUNTED_BUFFERS:
            buffers[last] = buffers.get(last, 0) + buffer.numel()
    total = sum(parameter.numel() for parameter in model.parameters())
    return total, buffers, {**config.to_dict(), "model_type": model_type}


def read(says: dict[str, Any], folder: Path) -> ModelSpec:
    """The model that this project reads from a config."""
    path = folder / "config.json"
    path.write_text(json.dumps(says, default=str).replace("Infinity", "1e9"), encoding="utf-8")
    return read_config(path).model


def differing_fields(one: ModelSpec, other: ModelSpec) -> list[str]:
    """Names of the fields in which the models of the short and the long config differ."""
    names = ("main_blocks", *(field.name for field in fields(ModelSpec) if field.name not in NOT_SHAPES))
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print a line for each model, and update the table on request. The exit status: 1 when a count differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--write", action="store_true", help="count anew and write the table")
    parser.add_argument("--only", default="", help="models whose name holds these words")
    options = parser.parse_args(arguments)
    import transformers

    transformers.logging.set_verbosity_error()
    table = json.loads(options.table.read_text(encoding="utf-8"))
    differing = 0
    for row in table["counts"]:
        if options.only not in row["name"]:
            continue
        total, buffers, whole = transformers_count(row["says"])
        if options.write:
            row.update(parameters=total, buffers=buffers)
        try:
            with tempfile.TemporaryDirectory() as folder:
                short, long = (read(says, Path(folder)) for says in (row["says"], whole))
        except ConfigError as error:
            differing += 1
            print(f"{row['name']:42} {total:>19,} REFUSED: {error}")
            continue
        ours = num_parameters(short).total
        stored = (row["parameters"], row["buffers"])
        differing_names = differing_fields(short, long)
        same = ours == total + sum(buffers.values()) and not differing_names and stored == (total, buffers)
        differing += not same
        words = (
            "equal"
            if same
            else f"DIFFERS: read {ours:,}; by the whole config other: {', '.join(differing_names) or 'nothing'}"
        )
        print(f"{row['name']:42} {total:>19,} {sum(buffers.values()):>9,}  {words}")
    if options.write:
        rows = ",\n".join(f"  {json.dumps(row)}" for row in table["counts"])
        head = json.dumps({"transformers": transformers.__version__})[:-1]
        with atomic_file(options.table) as file:
            file.write(f'{head}, "counts": [\n{rows}\n]}}\n')
    print(f"{len(table['counts'])} models, {differing} differ (transformers {transformers.__version__})")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
