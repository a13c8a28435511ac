"""A question from Python: the words of the command line as arguments, and what answers them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

from solver.analysis.sweep import AXES, SweepRow, run_sweep, sweep_requests
from solver.opening import load_problem
from solver.request import Request
from solver.result import check_believable
from solver.session import Session
from spec.errors import ConfigError
from spec.files import shipped_folder

SIZES = ("world_size", "global_batch_tokens", "seq_len", "framework", "precision")
"""Keys of a job that a request holds by themselves; the others are settings of the job (docs/configs.md)."""


class Asking(TypedDict, total=False):
    """The arguments of a question.

    ``model``: the path of a config, or the name of a shipped one. ``job``: world_size (GPUs),
    global_batch_tokens, seq_len (tokens), framework, precision, and any setting of a job by its key.
    ``cluster``: the name or path of a sheet; without it the machine of the profile. ``constraints`` as a
    config holds them: {"fix": {"tp": 8}, "max": {...}, "modes": [...], "headroom": 0.1}. ``profile``: a file,
    by default prof_data/data.pt. ``missing``, ``transfer`` and ``calibration`` as on the command line.
    """

    model: Required[str | Path]
    job: Required[Mapping[str, Any]]
    cluster: str | Path | None
    constraints: Mapping[str, Any]
    profile: str | Path | None
    missing: str
    transfer: bool
    calibration: str | Path | None


def ask(**asking: Unpack[Asking]) -> Session:
    """Reads and check the question, and open the times that answer it: ``ask(model=..., job=...)``, with the
    words of Asking.

    Raises ConfigError or ProfileError, in one line, for whatever does not fit together.
    """
    return Session(opened=load_problem(request_of(**asking)))


def sweep(over: Mapping[str, Sequence[object]], **asking: Unpack[Asking]) -> tuple[SweepRow, ...]:
    """Returns the best plan for every combination of the lists ``over`` (cluster, framework, seq_len,
    global_batch_tokens, micro_batch, world_size), which take the places of what is asked otherwise. A
    question without a feasible plan is a row that says so.

    Raises ConfigError or ProfileError, before anything is priced, for a question that cannot be asked.
    """
    for axis in over:
        if axis not in AXES:
            raise ConfigError(
                where="sweep", key=axis, value=over[axis], allowed=f"lists of {', '.join(AXES)}"
            )
    rows = run_sweep(sweep_requests(request_of(**asking), over))
    for row in rows:
        if row.answer is not None:
            check_believable((row.answer,), row.opened.source)
    return rows


def request_of(**asking: Unpack[Asking]) -> Request:
    """Returns the request; TypeError for a word that is none of Asking's, ConfigError for values of a wrong kind."""
    for word in asking.keys() - Asking.__annotations__.keys():
        raise TypeError(f"unexpected keyword {word!r}; known are {', '.join(Asking.__annotations__)}")
    for word in sorted(Asking.__required_keys__ - asking.keys()):
        raise TypeError(f"the keyword {word!r} is missing")
    job = dict(asking["job"])
    sizes = {key: job.pop(key) for key in SIZES if key in job}
    for key in SIZES[:3]:
        if key in sizes and type(sizes[key]) is not int:
            raise ConfigError(where="job", key=key, value=sizes[key], allowed="a whole number")
    cluster, missing = asking.get("cluster"), asking.get("missing", "error")
    if missing not in ("error", "modelled"):
        raise ConfigError(where="ask", key="missing", value=missing, allowed="error or modelled")
    return Request(
        root=shipped_folder(),
        config=Path(asking["model"]),
        cluster=None if cluster is None else str(cluster),
        profile=_path(asking.get("profile")),
        calibration=_path(asking.get("calibration")),
        missing=missing,
        transfer=asking.get("transfer", False),
        constraints=asking.get("constraints", {}),
        job=job,
        **sizes,
    )


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)
