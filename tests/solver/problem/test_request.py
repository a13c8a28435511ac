"""What a request says is read and checked without its profile's samples."""

import subprocess
import sys
from pathlib import Path

import pytest

from profdb.store import data_file
from solver.problem.request import Request, read_request
from spec.errors import ConfigError, ProfileError
from tests.solver.questions import ROOT

SHIPPED = ROOT / "prof_data" / "data.pt"


def asked(**changes: object) -> Request:
    given: dict[str, object] = {
        "root": ROOT,
        "profile": SHIPPED,
        "config": ROOT / "configs" / "7B_llama2.py",
        "world_size": 16,
        "global_batch_tokens": 524288,
    }
    return Request(**{**given, **changes})  # type: ignore[arg-type]


def test_the_profiles_cluster_is_known_without_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: Path) -> None:
        raise AssertionError(f"{path} was loaded")

    monkeypatch.setattr("solver.problem.request.load_profile", load)
    monkeypatch.setattr("solver.problem.loading.load_profile", load)
    monkeypatch.setattr(data_file, "load_profile", load)
    read = read_request(asked())
    assert (read.cluster.name, read.job.preset.name, read.job.world_size) == ("h200", "internevo", 16)
    assert read_request(asked(cluster="h100-sxm", framework="megatron")).job.preset.name == "megatron"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"world_size": 12}, "less than one node or a multiple of 8"),
        ({"world_size": 8 * 10**6}, "nodes of 8 GPUs"),
        ({"global_batch_tokens": 1000}, "a positive multiple of the sequence length"),
        ({"framework": "horovod"}, "one of composer, deepspeed"),
        ({"cluster": "no-such-sheet"}, "no-such-sheet"),
        ({"config": None}, "a model config"),
        ({"job": {"precision.narrow_head": True}}, "only beside narrow products"),
        ({"job": {"precision.wide_last_layers": 1}}, "0 unless linear layers multiply in 8 bits or fewer"),
        (
            {
                "precision": "fp8-current",
                "job": {"precision.wide_first_layers": 30, "precision.wide_last_layers": 3},
            },
            "precision.wide_last_layers = 3: .* at most the model's 32 layers",
        ),
        (
            {
                "precision": "fp8-current",
                "job": {"precision.scaling": "delayed", "precision.wide_first_layers": 1},
            },
            "scales that are not delayed",
        ),
        ({"job": {"precision.router": "fp32"}, "cluster": "ascend-910b"}, "none: .* has no TF32"),
    ],
)
def test_what_does_not_fit_together_is_one_line(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_request(asked(**changes))


def test_a_file_without_a_cluster_is_loaded_to_say_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "p.pt").write_text("no profile")
    with pytest.raises(ProfileError, match="not a profile"):
        read_request(asked(profile=tmp_path / "p.pt"))


def test_reading_a_request_imports_neither_torch_nor_scipy() -> None:
    """Both take most of the second in which a wrong request is to be refused."""
    code = (
        "import sys; from simulation_train_formulaic import main; "
        f"status = main(['--config', '{ROOT}/configs/7B_llama2.py', '--world_size', '12', "
        f"'--pre_profiling_data_path', '{SHIPPED}', '--run_all_solu']); "
        "print(status, sorted({'torch', 'scipy', 'solver.search', 'solver.estimate', 'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "2 []"
    assert "multiple of 8" in ran.stderr
