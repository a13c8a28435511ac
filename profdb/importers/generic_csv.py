"""The generic CSV form (docs/data_format.md): GEMM, attention and collective times of any source.

The header determines which of the three a file is. Times are in microseconds. Optional columns have the
defaults named in ``docs/data_format.md``; a row whose ``flag`` cell is not empty is skipped.
"""

from collections.abc import Callable
from pathlib import Path

from profdb.cases import AttentionCase, Case, CollectiveCase, GemmCase
from profdb.importers.csv_rows import CsvRow, read_rows
from profdb.sample import Sample
from spec.collectives import Collective
from spec.dtypes import canonical_dtype
from spec.errors import ConfigError, ProfileError
from spec.files import MOST_MEASURED_BYTES, UnreadableFileError, read_file_text
from spec.units import US

COLLECTIVE_NAMES: dict[str, Collective] = {kind.value: kind for kind in Collective} | {
    "alltoall": Collective.ALL_TO_ALL,
    "all_to_all": Collective.ALL_TO_ALL,
    "send_recv": Collective.P2P,
    "sendrecv": Collective.P2P,
}

FLAGS = {"0": False, "1": True, "false": False, "true": True}


def read_curves_csv(path: str | Path) -> dict[str, list[Sample]]:
    """Returns samples by GPU name. Raises ProfileError (file, line, column, reason)."""
    source = Path(path)
    make, required = _form_of(source)
    result: dict[str, list[Sample]] = {}
    for row in read_rows(source, required):
        # Authors of such files mark doubtful rows there.
        if row.text("flag", ""):
            continue
        sample = Sample(
            case=make(row),
            trials_s=(row.seconds("latency_us", US),),
            launched={"source": row.text("framework", "") or row.text("nccl_version", "")},
        )
        result.setdefault(row.text("gpu"), []).append(sample)
    return result


def _form_of(source: Path) -> tuple[Callable[[CsvRow], Case], tuple[str, ...]]:
    try:
        text = read_file_text(source, MOST_MEASURED_BYTES)
    except UnreadableFileError as error:
        raise ProfileError(f"{source}: {error}; nothing imported") from error
    # Column names may be in any order; the first form whose required columns are all there is used.
    header = {name.strip() for name in text.partition("\n")[0].split(",")}
    for required, make in FORMS.items():
        if header.issuperset(required):
            return make, required
    forms = "; ".join(",".join(required) for required in FORMS)
    raise ProfileError(f"{source}:1: no known form (a header needs one of: {forms}); nothing imported")


def _dtype(row: CsvRow) -> str:
    try:
        return canonical_dtype(row.text("dtype", "bf16"))
    except ConfigError as error:
        raise row.refuse("dtype", error.allowed) from error


def _word(row: CsvRow, column: str, allowed: tuple[str, ...]) -> str:
    # The first word allowed is the default of an empty cell.
    word = row.text(column, allowed[0])
    if word not in allowed:
        raise row.refuse(column, f"must be one of {', '.join(allowed)}")
    return word


def _gemm(row: CsvRow) -> Case:
    bias = row.text("bias", "0").lower()
    if bias not in FLAGS:
        raise row.refuse("bias", "must be 0 or 1")
    return GemmCase(
        batch=row.whole("batch", 1),
        m=row.whole("m"),
        k=row.whole("k"),
        n=row.whole("n"),
        layout=_word(row, "layout", ("NT", "NN", "TN")),
        dtype_in=_dtype(row),
        scale_recipe=row.text("scale_recipe", ""),
        bias=FLAGS[bias],
    )


def _attention(row: CsvRow) -> Case:
    length, width = row.whole("seq"), row.whole("head_dim")
    return AttentionCase(
        batch=row.whole("batch"),
        q_len=length,
        kv_len=row.whole("kv_len", length),
        heads=row.whole("heads"),
        kv_heads=row.whole("kv_heads"),
        qk_dim=width,
        v_dim=row.whole("v_head_dim", width),
        mask=_word(row, "mask", ("causal", "full", "window", "varlen")),
        window=row.whole("window", 0),
        direction=_word(row, "direction", ("forward", "backward")),
        kernel=row.text("kernel", "flash"),
        dtype=_dtype(row),
    )


def _collective(row: CsvRow) -> Case:
    name = row.text("collective")
    if name not in COLLECTIVE_NAMES:
        raise row.refuse("collective", f"must be one of {', '.join(COLLECTIVE_NAMES)}")
    ranks, nodes = row.whole("num_gpus"), row.whole("num_nodes", 1)
    if ranks % nodes:
        raise row.refuse("num_gpus", f"must be a multiple of num_nodes {nodes}")
    return CollectiveCase(
        collective=COLLECTIVE_NAMES[name],
        size_bytes=row.whole("bytes"),
        intra=ranks // nodes,
        inter=nodes,
        siblings=row.whole("siblings", 1),
        dtype=_dtype(row),
    )


FORMS: dict[tuple[str, ...], Callable[[CsvRow], Case]] = {
    ("gpu", "m", "n", "k", "latency_us"): _gemm,
    ("gpu", "batch", "seq", "heads", "kv_heads", "head_dim", "latency_us"): _attention,
    ("gpu", "collective", "num_gpus", "bytes", "latency_us"): _collective,
}
"""Columns each form must have, and how a row becomes a case."""
