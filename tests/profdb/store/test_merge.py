"""Merging keeps every trial and says where two runs disagree."""

from dataclasses import replace

import pytest

from profdb.cases import Family, GemmCase
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.merge import merge
from spec.errors import ProfileError
from spec.origin import Origin
from tests.profdb.profiles import collective_samples, gemm_samples, one_of_each, profile

CASE = GemmCase(m=64, k=64, n=64)


def run(seconds: float, date: str, origin: Origin = Origin.MEASURED) -> ProfileDatabase:
    return profile([Sample(case=CASE, trials_s=(seconds, seconds), date=date, origin=origin)])


def test_trials_of_both_runs_are_kept() -> None:
    merged = merge(run(1e-3, "2026-01-01"), run(1.05e-3, "2026-01-02"))
    assert [s.trials_s for s in merged.profile.samples] == [(1e-3, 1e-3), (1.05e-3, 1.05e-3)]
    assert merged.differences == ()
    assert merged.repeats == 0


def test_disagreeing_medians_are_reported() -> None:
    merged = merge(run(1e-3, "2026-01-01"), run(2e-3, "2026-01-02"))
    assert len(merged.differences) == 1
    assert merged.differences[0].case == CASE
    assert merged.differences[0].ratio == pytest.approx(2.0)


def test_modelled_times_are_not_compared_with_measured_ones() -> None:
    assert merge(run(1e-3, "a"), run(2e-3, "b", Origin.MODELLED)).differences == ()


def published(profile: ProfileDatabase) -> ProfileDatabase:
    """The samples as taken from a repository."""
    samples = [replace(one, launched={"published": "github:o/r@1 f"}) for one in profile.samples]
    return replace(profile, samples=samples, machine=replace(profile.machine, rest="modelled"))


@pytest.mark.parametrize("own_first", [False, True])
def test_own_samples_take_the_place_of_published_ones_family_by_family(own_first: bool) -> None:
    own, theirs = run(1e-3, "2026"), published(profile([*gemm_samples(), *collective_samples()]))
    merged = merge(*((own, theirs) if own_first else (theirs, own))).profile
    assert [one.launched for one in merged.samples if isinstance(one.case, GemmCase)] == [{}]
    assert merged.tables[Family.COLLECTIVE].size == len(collective_samples())
    assert merged.machine.rest == "modelled"


def test_published_samples_stay_beside_published_and_modelled_ones() -> None:
    theirs = published(run(1e-3, "2026"))
    for other in (published(run(2e-3, "2026")), run(2e-3, "2026", Origin.MODELLED)):
        assert len(merge(theirs, other).profile.samples) == len(merge(other, theirs).profile.samples) == 2


def test_merging_a_file_with_itself_changes_nothing() -> None:
    one = profile(one_of_each())
    merged = merge(one, one)
    assert merged.repeats == len(one.samples)
    assert list(merged.profile.samples) == list(one.samples)


def test_families_of_both_are_there() -> None:
    merged = merge(profile(gemm_samples()), profile(collective_samples())).profile
    assert set(merged.tables) == {Family.GEMM, Family.COLLECTIVE}
    assert len(merged.samples) == len(gemm_samples()) + len(collective_samples())


def test_words_are_matched_by_value_not_by_code() -> None:
    first = profile([Sample(case=GemmCase(m=1, k=1, n=1, layout=x), trials_s=(1.0,)) for x in ("TN", "NN")])
    second = profile([Sample(case=GemmCase(m=2, k=1, n=1, layout=x), trials_s=(1.0,)) for x in ("NT", "TN")])
    layouts = [s.case.layout for s in merge(first, second).profile.samples if isinstance(s.case, GemmCase)]
    assert layouts == ["TN", "NN", "NT", "TN"]


def test_machine_facts_are_joined() -> None:
    small = ProfileDatabase(machine=MachineFacts(gpu="X", date="1", best_flops={"bf16": 2.0}, driver="550"))
    large = ProfileDatabase(machine=MachineFacts(gpu="X", date="2", nodes=2, gpus_per_node=8, best_flops={"bf16": 1.0}))
    machine = merge(small, large).profile.machine
    assert (machine.nodes, machine.gpus_per_node, machine.driver) == (2, 8, "550")
    assert machine.best_flops == {"bf16": 2.0}


def test_different_gpus_are_refused() -> None:
    other = ProfileDatabase(machine=MachineFacts(gpu="Otherchip"))
    with pytest.raises(ProfileError, match="Otherchip"):
        merge(profile([]), other)
