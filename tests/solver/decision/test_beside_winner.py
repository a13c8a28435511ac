"""The plan with room: the fastest of all that need so little, not of those shown alone."""

from solver.decision.beside_winner import roomiest_fast
from solver.memory.device_memory import usable_bytes
from solver.plans.space import full_space
from solver.search import search
from spec.presets.registry import PRESETS
from spec.settings.constraints import constraints_of
from tests.solver.questions import question


def test_it_is_what_a_search_with_so_much_headroom_finds() -> None:
    asked = question(world_size=8, sequences=8, preset=PRESETS["megatron"])
    usable = usable_bytes(asked.cluster)
    front = search(asked, full_space(asked.model, asked.job), top_k=1).pareto
    assert len(front) > 3
    for limit in (front[1].needed_bytes, front[len(front) // 2].needed_bytes):
        share = limit / usable + 1e-9
        found = roomiest_fast(front, usable, share)
        left = full_space(asked.model, asked.job, constraints_of({"headroom": 1 - share}))
        assert found is not None
        assert found.step_s == search(asked, left, top_k=1).best[0].step_s
        assert found.step_s > front[0].step_s


def test_there_may_be_none() -> None:
    asked = question(world_size=2, sequences=2)
    front = search(asked, full_space(asked.model, asked.job), top_k=1).pareto
    assert roomiest_fast(front, usable_bytes(asked.cluster), 0.001) is None
