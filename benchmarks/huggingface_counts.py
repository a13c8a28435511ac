"""Does every reader of a Hugging Face config count the parameters of transformers' own model?

    python benchmarks/huggingface_counts.py [--write] [--only WORDS]

tests/spec/readers/huggingface/counts.json lists models: ``says``, a config with the fewest keys, all others being the
class's defaults; ``parameters`` of transformers' model of it on the meta device; and
``buffers``, elements of buffers that count as parameters, because published totals include routers' score corrections.
Each config is read as it is and as transformers writes it out. Both must give the same model, with the same count. Of a model that
also sees or hears its decoder and its head are counted. Every type that transformers has for causal language models, alone or behind
images and sound, must be counted so or be refused by name (spec/readers/huggingface/model_types.toml). --write
counts anew and writes the table, with a row for every type that has none, and what classes default to
(spec/readers/huggingface/class_defaults.json). It needs transformers, unlike the rest of the project:

    python -m venv --system-site-packages .venv-transformers && .venv-transformers/bin/pip install transformers

Exits with 1 when a count differs, or a type is neither counted nor refused.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from spec.errors import ConfigError  # noqa: E402
from spec.files import atomic_file  # noqa: E402
from spec.model import ModelSpec  # noqa: E402
from spec.parameters import num_parameters  # noqa: E402
from spec.readers.huggingface.type_facts import known_types, refusals, type_facts  # noqa: E402
from spec.readers.read_config import read_config  # noqa: E402

TABLE = ROOT / "tests" / "spec" / "readers" / "huggingface" / "counts.json"
READERS = ROOT / "spec" / "readers" / "huggingface"
DEFAULTS = READERS / "class_defaults.json"
NEEDED: dict[str, dict[str, Any]] = {
    "chameleon": {"vocabulary_map": {"<image>": 0}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}},
    "dbrx": {"attn_config": {"rope_theta": 10_000.0}},
    "deepseek_ocr2_text": {"num_experts_per_tok": 6, "mlp_layer_types": ["dense"] + 31 * ["sparse"]},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "gemma4_text": {"hidden_size_per_layer_input": 0},
    "glm4_moe": {"head_dim": 128},
    "glm4v_moe_text": {"head_dim": 128},
    "granite4_vision": {"deepstack_layer_map": [], "downsample_rate": "1/2"},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl_text": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 48},
    "qwen3_omni_moe_text": {"head_dim": 128},
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]},
}
"""Keys that a class leaves to its files: without them transformers builds no model, or readers refuse it."""
WHOLE = ("fun_asr_nano",)
"""Types whose class takes no text model of another size than its own default."""
UNBUILT = ("qwen3_omni_moe",)
"""Types that transformers builds no model of by default; each of them holds another that is counted."""
OWN_TIES = ("blip-2", "instructblip", "instructblipvideo")
"""Types around a whole causal model, which says itself whether its embeddings are tied."""
SAME_CLASS = {"kimi_k2": "deepseek_v3"}
"""Types whose class is published with their weights and has the structure of one of transformers' classes."""
COUNTED_BUFFERS = ("e_score_correction_bias", "expert_bias")
ELSEWHERE = ("embed_tokens_extend", "codec_model", "vqmodel", "vision_moe")
"""Modules inside a decoder that see or hear."""
NOT_SHAPES = ("blocks", "source", "rope", "max_positions", "assumptions")
"""Fields of ModelSpec that may differ between the short and the long config: learned positions are counted anyway, and MTP
blocks are in a model's own file but not in transformers' models."""


def causal_types() -> list[str]:
    """Returns every type that transformers has a causal language model for, alone or behind images and sound."""
    from transformers.models.auto import modeling_auto

    words = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")
    names = [getattr(modeling_auto, f"MODEL_FOR_{word}_MAPPING_NAMES", {}) for word in words]
    return sorted({name for mapping in names for name in mapping})


def transformers_config(says: dict[str, Any]) -> Any:
    """Returns transformers' config of what a file says."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = says["model_type"]
    values = {key: value for key, value in says.items() if key != "model_type"}
    return CONFIG_MAPPING[SAME_CLASS.get(model_type, model_type)](**values)


def transformers_model(config: Any) -> Any:
    """Returns transformers' model on the meta device; of one whose images or sound cannot be built by default, the text model."""
    import torch
    import transformers

    causal, text = transformers.AutoModelForCausalLM, config.get_text_config(decoder=True)
    autos = (causal, transformers.AutoModelForImageTextToText, transformers.AutoModelForMultimodalLM)
    auto = next((one for one in autos if type(config) in one._model_mapping), causal)
    with torch.device("meta"):
        try:
            return auto.from_config(config)
        except (ImportError, TypeError, ValueError, AttributeError):
            if text is config:
                raise
            text.tie_word_embeddings = getattr(config, "tie_word_embeddings", False)
            return causal.from_config(text)


def transformers_count(config: Any) -> tuple[int, dict[str, int]]:
    """Returns parameters of a decoder and its head, and elements of the buffers that count by name."""
    model, text = transformers_model(config), config.get_text_config(decoder=True)
    parts = [model]
    if text is not config:
        named = dict(model.named_modules())
        head = model.get_output_embeddings() or next(part for name, part in named.items() if name.endswith("lm_head"))
        parts = [next(part for part in named.values() if getattr(part, "config", None) is text), head]
    parameters, buffers = {}, dict[str, int]()
    for part in parts:
        for name, parameter in part.named_parameters():
            if not any(word in name for word in ELSEWHERE):
                parameters[id(parameter)] = parameter.numel()
        for name, buffer in part.named_buffers():
            last = name.rpartition(".")[2]
            if last in COUNTED_BUFFERS:
                buffers[last] = buffers.get(last, 0) + buffer.numel()
    return sum(parameters.values()), buffers


def read(says: dict[str, Any], folder: Path) -> ModelSpec:
    """Returns the model that this project reads from a config."""
    path = folder / "config.json"
    path.write_text(json.dumps(says, default=str).replace("Infinity", "1e9"), encoding="utf-8")
    return read_config(path).model


def differing_fields(one: ModelSpec, other: ModelSpec) -> list[str]:
    """Returns the names of the fields in which the models of the short and the long config differ."""
    names = ("main_blocks", *(field.name for field in fields(ModelSpec) if field.name not in NOT_SHAPES))
    return [name for name in names if getattr(one, name) != getattr(other, name)]


# What the classes take where a config leaves a key out.


def text_path(config: Any) -> list[str]:
    """Returns the keys under which the text model's config stands in that of a whole model; empty where it is all of it."""
    text = config.get_text_config(decoder=True)
    paths = [([], config)]
    for keys, each in paths:
        if each is text:
            return keys
        paths += [([*keys, key], inner) for key, inner in vars(each).items() if hasattr(inner, "to_dict")]
    return []


def read_keys() -> set[str]:
    """Returns the keys that readers may ask for: words in quotes of their code and of their table."""
    texts = [path.read_text(encoding="utf-8") for path in READERS.glob("*.py")]
    texts.append((READERS / "model_types.toml").read_text(encoding="utf-8"))
    return {word for text in texts for word in re.findall(r'"([a-zA-Z_0-9]+)"', text)}


def class_defaults(model_type: str, keys: set[str]) -> dict[str, object]:
    """Returns the defaults of a type's class, by the names of its reader."""
    config = transformers_config({"model_type": model_type})
    renamed = type_facts(model_type).renamed
    own = {field.name: field.default for field in fields(type(config)) if field.default is not MISSING}
    values = {renamed.get(key, key): value for key, value in own.items()}
    rope = config.to_dict().get("rope_parameters") or {}
    rope = rope.get("full_attention") or rope
    values |= {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if rope.get(key) is not None}
    return {key: value for key, value in values.items() if key in keys and isinstance(value, (bool, int, float, str))}


def nested_defaults(name: str, keys: set[str]) -> dict[str, Any] | None:
    """Returns where the text model stands in a config of this type, whether embeddings are tied, and what the outer class
    has it take instead of its own defaults; None where it is all of the config."""
    config = transformers_config(smallest_config(name))
    path, text = text_path(config), config.get_text_config(decoder=True)
    if not path:
        return None
    row: dict[str, Any] = {"text": text.model_type, "keys": path}
    if name not in OWN_TIES:
        row["tied"] = bool(getattr(config, "tie_word_embeddings", False))
    plain = transformers_config({"model_type": text.model_type, **NEEDED.get(text.model_type, {})}).to_dict()
    left = keys - {"tie_word_embeddings", "model_type"}
    own = {
        key: value
        for key, value in text.to_dict().items()
        if key in left and isinstance(value, (bool, int, float, str))
    }
    return row | ({"defaults": own} if any(plain.get(key) != value for key, value in own.items()) else {})


def write_defaults() -> None:
    """Writes class_defaults.json: types that are read, and those that see or hear around a text model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    keys = read_keys()
    types = {name: class_defaults(name, keys) for name in known_types() if name in CONFIG_MAPPING_NAMES}
    outer = {name: row for name in causal_types() if name not in refusals() and (row := nested_defaults(name, keys))}
    with atomic_file(DEFAULTS) as file:
        parts = (
            f'"{word}": {{\n' + ",\n".join(f'  "{name}": {json.dumps(row)}' for name, row in table.items()) + "\n}"
            for word, table in (("types", types), ("outer", outer))
        )
        file.write("{\n" + ",\n".join(parts) + "\n}\n")


# The table.


def smallest_config(name: str) -> dict[str, Any]:
    """Returns a config that says the type, and that of its text model, and what its class needs."""
    says = {"model_type": name}
    config = transformers_config({**says, **NEEDED.get(name, {})})
    text, path = config.get_text_config(decoder=True).model_type, text_path(config)
    if not path or name in WHOLE:
        return {**says, **NEEDED.get(name, {})}
    inner: dict[str, Any] = {"model_type": text, **NEEDED.get(text, {})}
    for key in reversed(path):
        inner = {key: inner}
    return {**says, **NEEDED.get(name, {}), **inner}


def missing_rows(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields a row for every type that is read, and has none."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    counted = {row["name"] for row in rows}
    inside = [row["text"] for row in json.loads(DEFAULTS.read_text(encoding="utf-8"))["outer"].values()]
    causal = [name for name in causal_types() if name not in UNBUILT]
    for name in (*known_types(), *causal):
        alone = name in causal or name not in inside
        title = f"{name}, class defaults"
        if name in CONFIG_MAPPING_NAMES and title not in counted and alone and is_read(name):
            counted.add(title)
            yield {"name": title, "says": smallest_config(name), "parameters": 0, "buffers": {}}


def is_read(name: str) -> bool:
    """Returns whether the text model of a type is read."""
    outer = json.loads(DEFAULTS.read_text(encoding="utf-8"))["outer"]
    return outer.get(name, {"text": name})["text"] in known_types()


def check_row(row: dict[str, Any], *, write: bool) -> str:
    """Returns "equal", or how counts differ; with ``write`` the row takes transformers'."""
    config = transformers_config(row["says"])
    total, buffers = transformers_count(config)
    if write:
        row.update(parameters=total, buffers=buffers)
    whole = {**config.to_dict(), "model_type": row["says"]["model_type"]}
    try:
        with tempfile.TemporaryDirectory() as folder:
            short, long = (read(says, Path(folder)) for says in (row["says"], whole))
    except ConfigError as error:
        return f"REFUSED: {error}"
    ours, differing = num_parameters(short).total, differing_fields(short, long)
    if (
        ours == total + sum(buffers.values())
        and not differing
        and (row["parameters"], row["buffers"]) == (total, buffers)
    ):
        return "equal"
    return f"DIFFERS: read {ours:,} of {total:,}; by the whole config other: {', '.join(differing) or 'nothing'}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print a line for each model, and update the table on request. The exit status: 1 when a count differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="count anew and write the tables")
    parser.add_argument("--only", default="", help="models whose name holds these words")
    options = parser.parse_args(arguments)
    import transformers

    transformers.logging.set_verbosity_error()
    if options.write:
        write_defaults()
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    rows = [*table["counts"], *(missing_rows(table["counts"]) if options.write else ())]
    differing = 0
    for row in rows:
        if options.only in row["name"] and "published" not in row:
            words = check_row(row, write=options.write)
            differing += words != "equal"
            print(f"{row['name']:42} {row['parameters']:>19,} {sum(row['buffers'].values()):>9,}  {words}")
    if options.write:
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        head = json.dumps({"transformers": transformers.__version__})[:-1]
        with atomic_file(TABLE) as file:
            file.write(f'{head}, "counts": [\n{lines}\n]}}\n')
    counted = {row["says"]["model_type"] for row in rows}
    unknown = [name for name in causal_types() if name not in (*counted, *UNBUILT) and is_read(name)]
    unread = [name for name in causal_types() if not is_read(name) and not refusal(name)]
    print(
        f"{len(rows)} models, {differing} differ (transformers {transformers.__version__}); neither read nor refused: {', '.join(unread) or 'none'}"
    )
    return int(bool(differing or unknown or unread))


def refusal(name: str) -> str:
    """Returns why a type, or its text model, is refused; nothing where it is not."""
    outer = json.loads(DEFAULTS.read_text(encoding="utf-8"))["outer"]
    return refusals().get(name) or refusals().get(outer.get(name, {}).get("text", ""), "")


if __name__ == "__main__":
    sys.exit(main())
