"""What is checked in columns and stored curves, one spoiled value at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from profdb.refit import with_fits
from profdb.store.checks import TRIAL_LIMITS_S
from profdb.store.columns import MOST_OF_A_SIZE
from profdb.store.data_file import load_profile, save_profile
from spec.errors import ProfileError
from tests.profdb.profiles import gemm_samples, one_of_each, profile

Plain = dict[str, Any]


def gemm(document: Plain) -> Plain:
    columns: Plain = document["families"]["gemm"]
    return columns


def fit(document: Plain) -> Plain:
    packed: Plain = document["fits"]["gemm"]
    return packed


def set_first(tensor: torch.Tensor, value: float) -> None:
    tensor[0] = value


SPOILED: dict[str, tuple[Callable[[Plain], object], str]] = {
    "schema": (lambda d: d.update(schema_version=99), "schema version 99"),
    "missing column": (lambda d: gemm(d)["numbers"].pop("k"), "KeyError: 'k'"),
    "short column": (lambda d: gemm(d)["numbers"].update(k=torch.zeros(1).long()), "column k of gemm has (1,)"),
    "unknown status": (lambda d: gemm(d)["status"].fill_(17), "unknown status"),
    "unknown origin": (lambda d: gemm(d)["origin"].fill_(-1), "unknown origin"),
    "unknown family": (lambda d: d["families"].update(teleport=gemm(d)), "'teleport'"),
    "word code": (lambda d: gemm(d)["words"]["layout"]["codes"].fill_(40), "words does not match"),
    "offsets": (lambda d: gemm(d)["trial_offsets"][1].fill_(10**6), "offsets"),
    "no machine": (lambda d: d.pop("machine"), "KeyError: 'machine'"),
    "machine of another kind": (lambda d: d.update(machine=3), "damaged profile"),
    "no time": (lambda d: set_first(gemm(d)["trials_s"], TRIAL_LIMITS_S[0] / 2), "a trial is not a time"),
    "a year": (lambda d: set_first(gemm(d)["trials_s"], 365 * 86400.0), "a trial is not a time"),
    "NaN": (lambda d: set_first(gemm(d)["trials_s"], float("nan")), "a trial is not a time"),
    "size 0": (lambda d: set_first(gemm(d)["numbers"]["m"], 0), "a m outside 1"),
    "a huge size": (lambda d: set_first(gemm(d)["numbers"]["n"], MOST_OF_A_SIZE + 1), "a n outside 1"),
    "a flag of 2": (lambda d: set_first(gemm(d)["numbers"]["bias"], 2), "a bias outside 0 to 1"),
    "float sizes": (lambda d: gemm(d)["numbers"].update(m=gemm(d)["numbers"]["m"].double()), "float64"),
    "trials in columns": (lambda d: gemm(d).update(trials_s=gemm(d)["trials_s"][:, None]), "2-D"),
    "a word that is none": (lambda d: gemm(d)["words"]["layout"].update(values="[1]"), "no list of words"),
    "deep words": (lambda d: gemm(d)["words"]["layout"].update(values="[" * 10**6), "RecursionError"),
    "launched": (lambda d: gemm(d)["launched"].update(values='["{}", "7"]'), "launched is no JSON object"),
    "no trial": (lambda d: gemm(d)["trial_offsets"].__setitem__(1, 0), "ok without a single trial"),
    "an unknown collective": (
        lambda d: d["families"]["collective"]["words"]["collective"].update(values='["telepathy"]'),
        "unknown collective 'telepathy'",
    ),
    "GPU that is no name": (lambda d: d["machine"].update(gpu=7), "machine.gpu"),
    "GPUs below none": (lambda d: d["machine"].update(gpus_per_node=-8), "machine.gpus_per_node"),
    "NaN Hz": (lambda d: d["machine"].update(sm_clock_hz=float("nan")), "machine.sm_clock_hz"),
    "a rest of no kind": (lambda d: d["machine"].update(rest="error"), "machine.rest is 'error'"),
    "NaN FLOP/s": (lambda d: d["machine"]["best_flops"].update(bf16=float("nan")), "machine.best_flops.bf16"),
    "fit of NaN": (lambda d: set_first(fit(d)["values"], float("nan")), "not finite"),
    "short fit": (lambda d: fit(d).update(values=fit(d)["values"][:-1].clone()), "do not fit each other"),
    "fit of a negative shape": (lambda d: fit(d).update(index='[{"arrays": [["lines", [-1, -1]]]}]'), "shape"),
    "fit without its hash": (lambda d: fit(d).pop("sample_hash"), "do not fit each other"),
    "huge fit": (
        lambda d: fit(d).update(index='[{"arrays": [["lines", [2000000]]]}]', values=torch.ones(2_000_000).double()),
        "too many for",
    ),
    "fit of no samples": (lambda d: d["families"].pop("gemm"), "of which it has no samples"),
    "a tensor larger than the file": (
        lambda d: gemm(d).update(trials_s=torch.ones(1).double().expand(10**12)),
        "a tensor of 1,000,000,000,000 elements",
    ),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "data.pt"
    save_profile(path, with_fits(profile([*one_of_each(), *gemm_samples()])))
    return path


@pytest.mark.parametrize("kind", SPOILED)
def test_one_spoiled_value_is_refused(kind: str, sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "data.pt"
    document = torch.load(sound, weights_only=True)
    spoil, predicted = SPOILED[kind]
    spoil(document)
    torch.save(document, path)
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert predicted in str(caught.value)
    assert "\n" not in str(caught.value)
