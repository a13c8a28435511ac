"""Every parallel plan trains as one process does: loss, gradients, and the loss after an update.

The bound is 1e-5, relative, in fp32 (whose rounding makes some 1e-7 of sums as long as these).
"""

import json

import pytest

from tests.runner.training.test_run import ran

pytestmark = pytest.mark.distributed

BOUND = 1e-5

PLANS: dict[str, dict[str, object]] = {
    "tp4": {"tp": 4},
    "tp2dp2": {"tp": 2, "dp": 2, "micro_batch": 2},
    "tp2dp2, tokens whole": {"tp": 2, "dp": 2, "strategy": "mtp"},
    "pp4": {"pp": 4},
    "tp2pp2": {"tp": 2, "pp": 2},
    "interleaved": {"pp": 2, "vpp": 2, "dp": 2, "recompute": "full"},
    "layout": {"pp": 2, "dp": 2, "stage_layout": "Et*3|tL"},
    "cp2tp2": {"cp": 2, "tp": 2},
    "cp2pp2": {"cp": 2, "pp": 2},
    "zero1 in halves": {"dp": 4, "zero_stage": 1, "zero_size": 2},
    "zero1tp2": {"tp": 2, "dp": 2, "zero_stage": 1, "zero_size": 2},
    "zero2": {"dp": 4, "zero_stage": 2, "zero_size": 4},
    "zero3 in halves": {"dp": 4, "zero_stage": 3, "zero_size": 2},
    "zero3cp2": {"cp": 2, "dp": 2, "zero_stage": 3, "zero_size": 4},
    "zero3tp2": {"tp": 2, "dp": 2, "zero_stage": 3, "zero_size": 2},
    "zero3pp2": {"pp": 2, "dp": 2, "zero_stage": 3, "zero_size": 2},
    "experts everywhere": {"dp": 4, "experts": True},
    "ep4": {"dp": 4, "ep": 4, "experts": True},
    "ep2tp2": {"tp": 2, "dp": 2, "ep": 2, "experts": True},
    "ep1tp2": {"tp": 2, "dp": 2, "experts": True},
    "ep2pp2": {"pp": 2, "dp": 2, "ep": 2, "experts": True},
    "ep2cp2": {"cp": 2, "dp": 2, "ep": 2, "experts": True},
    "ep2zero1": {"dp": 4, "ep": 2, "zero_stage": 1, "zero_size": 4, "experts": True},
    "ep2zero3": {"dp": 4, "ep": 2, "zero_stage": 3, "zero_size": 4, "experts": True},
    "ep4zero2": {"dp": 4, "ep": 4, "zero_stage": 2, "zero_size": 4, "experts": True},
    "other tp2dp2": {"tp": 2, "dp": 2, "other": True},
    "other tp4, tokens whole": {"tp": 4, "strategy": "mtp", "other": True},
    "other cp4": {"cp": 4, "other": True},
    "other cp4 by heads": {"cp": 4, "context_parallel": "all_to_all", "other": True},
    "other zero1": {"dp": 4, "zero_stage": 1, "zero_size": 4, "other": True},
    "fsp zero3": {"tp": 2, "dp": 2, "strategy": "fsp", "zero_stage": 3, "zero_size": 2},
    "fsp ep2": {"tp": 2, "dp": 2, "strategy": "fsp", "ep": 2, "experts": True},
    "fsp pp2 recompute": {"tp": 2, "pp": 2, "strategy": "fsp", "recompute": "full"},
    "other fsp4": {"tp": 4, "strategy": "fsp", "other": True},
    "zero bubble": {"pp": 4, "schedule": "zb-1p"},
    "zero bubble h1": {"pp": 2, "dp": 2, "schedule": "zb-h1"},
    "zero bubble fsp": {"pp": 2, "tp": 2, "strategy": "fsp", "schedule": "zb-1p"},
    "zero bubble zero1": {"pp": 2, "dp": 2, "schedule": "zb-1p", "zero_stage": 1, "zero_size": 2},
    "zero bubble cp2": {"pp": 2, "cp": 2, "schedule": "zb-1p"},
    "zero bubble ep2": {"pp": 2, "dp": 2, "ep": 2, "schedule": "zb-1p", "experts": True},
    "zero bubble recompute": {"pp": 2, "dp": 2, "schedule": "zb-1p", "recompute": "full"},
    "zero bubble of chunks ep2": {"pp": 2, "vpp": 2, "dp": 2, "ep": 2, "schedule": "zb-interleaved", "experts": True},
    "zero bubble in a V": {"pp": 2, "vpp": 2, "dp": 2, "schedule": "zb-v", "zero_stage": 1, "zero_size": 2},
    "zero bubble in a V tp2": {"pp": 2, "vpp": 2, "tp": 2, "schedule": "zb-v"},
    "zero bubble in a V recompute": {"pp": 2, "vpp": 2, "cp": 2, "schedule": "zb-v", "recompute": "full"},
    "all forwards first zero3": {"pp": 2, "dp": 2, "schedule": "gpipe", "zero_stage": 3, "zero_size": 2},
    "breadth first zero3": {"pp": 2, "vpp": 2, "dp": 2, "schedule": "looped-bfs", "zero_stage": 3, "zero_size": 2},
    "recompute attention": {"dp": 4, "recompute": "selective"},
    "recompute one layer": {"dp": 4, "recompute": "block", "num_recompute_layers": 1},
    "recompute tp2": {"tp": 2, "dp": 2, "recompute": "full"},
    "recompute zero3": {"dp": 4, "zero_stage": 3, "zero_size": 4, "recompute": "full"},
    "recompute ep2": {"dp": 4, "ep": 2, "experts": True, "recompute": "full"},
}


@pytest.mark.nightly
def test_plans_of_four_ranks_train_as_one_process_does() -> None:
    result = {each.pop("name"): each for each in ran("plans_agree.py", "4", json.dumps(PLANS))}
    assert list(result) == list(PLANS)
    wrong = {name: each for name, each in result.items() if not max(each.values()) < BOUND}
    assert not wrong
