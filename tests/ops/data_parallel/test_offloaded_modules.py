"""Parts of layers that wait on the host: bytes by hand, taken from the device and given back."""

from dataclasses import replace

import numpy as np
import pytest

from ops.block import layer_ops
from ops.cpu_overhead import OFFLOADED_PART_CALLS, OFFLOADED_TENSOR_CALLS, cpu_overhead
from ops.data_parallel.offload import offload_named
from ops.layout import Layout
from ops.op import HostTransfer, Lane, Pass, Phase
from ops.recompute import Recompute
from ops.roles import Role
from profdb.host_copies import LINK_SHARE
from solver.estimate import estimate_memory, step_time
from solver.plans.plan_table import Plan, PlanTable
from spec.cluster.cluster import HostSpec
from spec.frameworks import framework_preset
from spec.model import ModelSpec
from spec.readers.read_config import read_config
from tests.ops.layouts import job
from tests.solver.questions import ROOT, question, small_model

SEQ = 256
DENSE, EXPERTS = 0, 1
HIDDEN, HEADS, TOP_K, WIDTH = 7168, 128, 8, 2048
Q_RANK, KV_RANK = 1536, 512


def model(name: str = "671B_deepseek_v3.toml") -> ModelSpec:
    return read_config(ROOT / "configs" / name).model


def layer(which: int, *names: str, again: tuple[str, ...] = (), of: ModelSpec | None = None) -> Pass:
    bare = layer_ops(of or model(), job(seq_len=SEQ), Layout.of(8, ep=8), "mtp")
    return bare.apply_recompute(Recompute.NONE, again, names).blocks[which]


def moved(piece: Pass, role: Role = Role.ACTIVATIONS_TO_HOST) -> dict[str, float]:
    return {op.name: float(op.size_bytes[0]) for op in (*piece.forward, *piece.backward) if op.role is role}


def saved(piece: Pass) -> float:
    return float(
        sum(np.max(op.saved_bytes, initial=0.0) + np.min(op.saved_bytes, initial=0.0) for op in piece.forward)
    )


# What each part of a layer with experts saves a token, in bytes: tensors of 16 bits, statistics of 32.
CORE = 2 * HEADS * (192 + 192 + 128) + 4 * HEADS
BY_HAND = {
    "attn_norm": 2 * HIDDEN,
    "qkv_linear": 2 * (HIDDEN + 2 * Q_RANK + 2 * KV_RANK),
    "core_attn": CORE,
    "attn_proj": 2 * HEADS * 128,
    "mlp_norm": 2 * HIDDEN,
    "expert_fc1": 2 * TOP_K * HIDDEN,
    "moe_act": 2 * TOP_K * 2 * WIDTH,
    "fused_group_mlp": 2 * TOP_K * (HIDDEN + 3 * WIDTH),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_part_sends_what_it_saves_and_takes_it_back(name: str) -> None:
    piece = layer(EXPERTS, name)
    assert moved(piece) == {f"{name}.to_host": pytest.approx(SEQ * BY_HAND[name], rel=2e-3)}
    back = moved(piece, Role.ACTIVATIONS_FROM_HOST)
    assert list(back.values()) == list(moved(piece).values())
    assert saved(piece) == pytest.approx(saved(layer(EXPERTS)) - sum(back.values()))
    on_its_way = [float(op.transient_bytes[0]) for op in piece.forward if op.role is Role.ACTIVATIONS_TO_HOST]
    assert on_its_way == list(back.values())


def test_every_byte_leaves_once() -> None:
    """All parts but the one that is three others together; what stays is no part's."""
    names = tuple(name for name in BY_HAND if name != "fused_group_mlp")
    piece = layer(EXPERTS, *names)
    assert len(moved(piece)) == len(names)
    assert saved(piece) + sum(moved(piece).values()) == pytest.approx(saved(layer(EXPERTS)))
    assert sum(moved(piece).values()) == pytest.approx(
        sum(moved(layer(EXPERTS, one)).popitem()[1] for one in names)
    )


def test_what_comes_back_first_left_last() -> None:
    piece = layer(EXPERTS, "core_attn", "expert_fc1", "moe_act")
    away = [op.name.split(".")[0] for op in piece.forward if isinstance(op, HostTransfer)]
    back = [op.name.split(".")[0] for op in piece.backward if isinstance(op, HostTransfer)]
    assert back == away[::-1]
    assert all(
        op.lane is Lane.COPY for op in (*piece.forward, *piece.backward) if isinstance(op, HostTransfer)
    )


def test_only_modules_of_their_own_are_parts() -> None:
    """Dense layers have no experts, and Transformer Engine fuses a norm into the product behind it but before MLA
    and before experts."""
    assert set(moved(layer(DENSE, *BY_HAND))) == {
        f"{name}.to_host" for name in ("attn_norm", "qkv_linear", "core_attn", "attn_proj")
    }
    plain = layer(DENSE, "attn_norm", "qkv_linear", "mlp_norm", of=model("13B_gpt.toml"))
    norm_and_input = 2 * 5120 + 2 * 5120
    assert moved(plain) == {"qkv_linear.to_host": pytest.approx(SEQ * norm_and_input, rel=2e-2)}


def test_what_runs_again_is_not_sent() -> None:
    """The activation's input stays for it to run again, the input of the last product is dropped."""
    both = layer(EXPERTS, "moe_act", again=("moe_act",))
    assert moved(both) == moved(layer(EXPERTS, "moe_act"))
    dropped = 2 * TOP_K * WIDTH * SEQ
    assert saved(layer(EXPERTS, "moe_act")) - saved(both) == pytest.approx(dropped, rel=1e-3)


def test_a_layer_that_runs_again_sends_its_input_alone() -> None:
    bare = layer_ops(model(), job(seq_len=SEQ), Layout.of(8, ep=8), "mtp")
    sent = ("layer_input",)
    whole = bare.apply_recompute(Recompute.FULL, (), sent).blocks[EXPERTS]
    kept = bare.apply_recompute(Recompute.FULL).blocks[EXPERTS]
    assert moved(whole) == {"layer_input.to_host": SEQ * 2 * HIDDEN}
    assert (saved(kept), saved(whole)) == (SEQ * 2 * HIDDEN, 0.0)
    assert moved(bare.apply_recompute(Recompute.NONE, (), sent).blocks[EXPERTS]) == {}
    partly = bare.apply_recompute(Recompute.BLOCK, (), sent).blocks
    half = len(partly) // 2
    assert [bool(moved(one)) for one in partly] == [True] * half + [False] * half
    assert len(partly) == 2 * len(bare.apply_recompute(Recompute.NONE).blocks)
    # Parts of a layer that runs again whole are not kept and not sent.
    assert moved(bare.apply_recompute(Recompute.FULL, (), ("core_attn",)).blocks[EXPERTS]) == {}


def test_equal_layers_share_a_piece() -> None:
    bare = layer_ops(model(), job(seq_len=SEQ), Layout.of(8, ep=8), "mtp")
    first, second = (bare.apply_recompute(Recompute.NONE, (), ("core_attn",)) for _ in range(2))
    assert first.blocks[DENSE] is second.blocks[DENSE]
    assert first.blocks[DENSE] is not bare.apply_recompute(Recompute.NONE).blocks[DENSE]
    piece = bare.apply_recompute(Recompute.NONE).blocks[DENSE]
    assert offload_named(piece, ("expert_fc1",)).forward == piece.forward


def test_the_host_takes_a_part_and_each_of_its_tensors() -> None:
    piece = layer(EXPERTS, "core_attn", "mlp_norm")
    transfers = {op.name: op for op in (*piece.forward, *piece.backward) if isinstance(op, HostTransfer)}
    for name, tensors in (("core_attn", 5), ("mlp_norm", 1)):
        for way, back in (("to_host", 0), ("from_host", 1)):
            op = transfers[f"{name}.{way}"]
            work = cpu_overhead(op, job())
            assert (op.phase is not Phase.FORWARD) == bool(back)
            assert work.calls[0] == pytest.approx(
                OFFLOADED_PART_CALLS[back] + tensors * OFFLOADED_TENSOR_CALLS
            )
            assert work.launches[0] == tensors
    graphed = replace(job(), cuda_graphs=frozenset({"attn"}))
    assert cpu_overhead(transfers["core_attn.to_host"], graphed).calls[0] == 0.0
    assert cpu_overhead(transfers["mlp_norm.to_host"], graphed).calls[0] > 0.0


def asked(*names: str, link: float = 1e15, pp: int = 2) -> dict[str, float]:
    """Memory and waiting of a small model's plan."""
    base = question(world_size=8, sequences=64, preset=framework_preset("megatron"), model=small_model())
    host = HostSpec(link_bandwidth=link, memory_bandwidth=400e9)
    pricer = replace(base.pricer, host=host, gpus_per_node=8)
    plan = Plan(
        strategy="mtp", preset="megatron", dp=8 // pp, pp=pp, num_micro=64 * pp // 8, offload_modules=names
    )
    table = estimate_memory(base.model, base.job, PlanTable.of(plan), replace(base.cluster, host=host))
    cost = step_time(base.model, base.job, table, pricer)
    return {
        "saved": float(table.memory.activations_bytes[0]),
        "host": float(table.memory.host_bytes[0]),
        "offload": float(cost.parts["offload"][0]),
    }


def test_the_first_stage_holds_its_micro_batches_on_the_host() -> None:
    here, gone = asked(), asked("core_attn")
    assert gone["host"] > 0.0
    assert here["saved"] - gone["saved"] == pytest.approx(gone["host"])
    # Two micro-batches of half of the layers, or one of all.
    assert asked("core_attn", pp=1)["host"] == pytest.approx(gone["host"])


def test_a_link_that_is_too_slow_is_waited_for_both_ways() -> None:
    assert asked("core_attn", pp=1)["offload"] == 0.0
    slow = asked("core_attn", pp=1, link=1e6)
    both_ways_s = 2 * 8 * slow["host"] / (1e6 * LINK_SHARE)
    assert slow["offload"] == pytest.approx(both_ways_s, rel=0.02)
