"""InternLM-style ``.py`` configs: which top-level names are read, passed over or refused."""

from pathlib import Path

from spec.readers.config_file import ConfigFile
from spec.readers.internlm_keys import TOP_LEVEL
from spec.readers.internlm_model import FAMILIES, read_internlm_model
from spec.readers.internlm_plan import TrainingSections, read_internlm_plan
from spec.readers.pyconfig import PyConfig, read_pyconfig
from spec.section import Section


def read_internlm_config(path: Path) -> ConfigFile:
    """The model, sequence length and written plan of one file; raises ConfigError.

    A file without a ``parallel`` section has no written plan.
    """
    return internlm_config(read_pyconfig(path), where=str(path), name=path.stem)


def internlm_config(config: PyConfig, *, where: str, name: str) -> ConfigFile:
    """As read_internlm_config, from names already evaluated."""
    top = Section(where=where, name="", values=config.values, lines=config.lines)
    model_section, data = top.section("model"), top.section("data")
    if not model_section.values:
        top.fail("model", "required: model = dict(num_layers=..., hidden_size=..., ...)")
    training = _training(top, data, model_section)
    model = read_internlm_model(
        model_section,
        top.section("moe"),
        model_type=top.choice("model_type", tuple(FAMILIES), "INTERNLM"),
        name=name,
        source=where,
    )
    seq_len = data.maybe_integer("seq_len")
    # the rest of `data` describes the data set; what reaches the step is whole sequences
    data.only("unit_schedule_size", (), "ZeroPP schedules are not priced")
    if data.has("gradient_accumulation"):
        data.only("gradient_accumulation", (data.values.get("micro_num"),), "it must equal micro_num")
    _close_top(top, config)
    return ConfigFile(
        path=where,
        format="internlm",
        model=model,
        seq_len=seq_len,
        plan=training.plan,
        framework="internevo",
        job=training.job,
        framework_job=training.framework_job,
        sequence_parallel=training.sequence_parallel,
    )


def _training(top: Section, data: Section, model: Section) -> TrainingSections:
    zero = top.section("hybrid_zero_optimizer")
    training = read_internlm_plan(top.section("parallel"), data, model, zero)
    return training if "parallel" in top.values else TrainingSections()


def _close_top(top: Section, config: PyConfig) -> None:
    """Refuse what could change the answer; pass over the file's own constants and helpers.

    A constant is a name in capitals, or one that another expression of the file refers to.
    """
    top.only("use_fp32_norm", (False,), "fp32 norms are not priced")
    top.only("selective_checkpoint", (False,), "selective recomputation is not priced yet")
    top.only("selective_checkpoint_offload", (False,), "offloading is not priced yet")
    offload = top.section("cpu_offloading")
    offload.only("enable", (False,), "offloading is not priced yet")
    constants = {name for name in config.values if name.isupper() or name.startswith("_")}
    top.close(TOP_LEVEL | constants | config.used)
