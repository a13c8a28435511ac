"""The models that torchtitan has, by what tells them apart.

Source: torchtitan b5bcd76 (August 2026), models/*/__init__.py (the configs behind ``model_registry``);
parameters counted there on the meta device. Corrections of a sigmoid router's scores are buffers and not
among them; the biases of gpt_oss's router are. Layers: models/common/decoder.py, models/gpt_oss (windows in
every other layer).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from spec.mixers.attention import QkNormWeights, attention_of
from spec.model import ModelSpec, NormKind, NormPlace, PositionKind
from spec.parameters import num_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """``module`` of torchtitan.models, the ``name`` that its model_registry takes, and the ``recipe`` of its
    config_registry whose data, tokenizer, optimizer and checkpoints a run starts from."""

    module: str
    name: str
    recipe: str
    layers: int
    hidden: int
    parameters: int

    @property
    def windowed(self) -> bool:
        """Whether layers have windows."""
        return self.module == "gpt_oss"


def _flavors(module: str, recipe: str, *rows: tuple[str, int, int, int]) -> tuple[Flavor, ...]:
    return tuple(
        Flavor(module=module, name=name, recipe=recipe, layers=layers, hidden=hidden, parameters=count)
        for name, layers, hidden, count in rows
    )


FLAVORS = (
    *_flavors(
        "llama3",
        "llama3_8b",
        ("1B", 16, 2048, 1_235_814_400),
        ("3B", 28, 3072, 3_212_749_824),
        ("8B", 32, 4096, 8_030_261_248),
        ("70B", 80, 8192, 70_553_706_496),
        ("405B", 126, 16384, 405_853_388_800),
    ),
    *_flavors(
        "qwen3",
        "qwen3_14b",
        ("0.6B", 28, 1024, 596_049_920),
        ("1.7B", 28, 2048, 1_720_574_976),
        ("4B", 36, 2560, 4_022_468_096),
        ("8B", 36, 4096, 8_190_735_360),
        ("14B", 40, 5120, 14_768_307_200),
        ("32B", 64, 5120, 32_762_123_264),
        ("30B-A3B", 48, 2048, 30_532_122_624),
        ("235B-A22B", 94, 4096, 235_093_634_560),
    ),
    *_flavors(
        "deepseek_v3",
        "deepseek_v3_16b",
        ("16B", 27, 2048, 15_706_484_224),
        ("236B", 60, 5120, 235_741_434_880),
        ("671B", 61, 7168, 671_026_404_352),
    ),
    *_flavors(
        "gpt_oss",
        "gpt_oss_20b",
        ("20b", 24, 2880, 20_914_757_184),
        ("120b", 36, 2880, 116_829_156_672),
    ),
)


def flavor_of(model: ModelSpec) -> Flavor | None:
    """The flavor with as many layers, columns and parameters as ``model``, multi-token prediction aside."""
    counted = num_parameters(model)
    corrected = any(run.block.moe and run.block.moe.score == "sigmoid" for run in model.blocks)
    same = (model.num_layers, model.hidden, counted.total - corrected * counted.router_bias)
    return next((one for one in FLAVORS if (one.layers, one.hidden, one.parameters) == same), None)


def unlike(model: ModelSpec, flavor: Flavor) -> Iterator[str]:
    """What ``model`` has that the flavor has not, though it has as many parameters: no weight tells of it."""
    attentions = [attention_of(run.block.mixer, "settings of torchtitan") for run in model.main_blocks]
    if model.norm is not NormKind.RMS or any(run.block.norm is not NormKind.RMS for run in model.blocks):
        yield "norms other than RMSNorm"
    if model.position is not PositionKind.ROTARY:
        yield "other than rotary positions"
    if model.logit_softcap:
        yield "soft-capped logits"
    if any(
        run.block.parallel_residual or run.block.norm_place is not NormPlace.BEFORE
        for run in model.main_blocks
    ):
        yield "norms elsewhere than before each half"
    if any(attention.softcap or attention.chunk for attention in attentions):
        yield "soft-capped or chunked attention"
    if any(attention.alibi for attention in attentions):
        yield "ALiBi"
    if any(attention.window is not None for attention in attentions) != flavor.windowed:
        yield f"{'full attention in every layer' if flavor.windowed else 'windows'} of {flavor.module}"
    if any(attention.qk_norm and attention.qk_norm_weights is QkNormWeights.NONE for attention in attentions):
        yield "norms of queries and keys without weights"
