"""Questions for tests: small published models on a cluster whose every time is arithmetic."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from solver.problem.model_flops import products
from solver.problem.problem import Problem
from solver.problem.request import Request
from solver.times.op_times import OpTimer
from spec.cluster.cluster import ClusterSpec, GpuSpec, NetworkDomain
from spec.cluster.reader import read_architecture
from spec.frameworks import FrameworkPreset, framework_preset
from spec.job import JobSpec, precision_of
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec
from tests.solver.flat_cost_model import FlatCostModel

ROOT = Path(__file__).resolve().parents[2]
INTERNEVO = framework_preset("internevo")


def small_model(*, layers: int = 8, kv_heads: int = 4, hidden: int = 512, heads: int = 8) -> ModelSpec:
    """A Llama-like model of a few million parameters."""
    attention = AttentionSpec(
        kind=AttentionKind.GQA, num_heads=heads, num_kv_heads=kv_heads, qk_dim=hidden // heads, v_dim=hidden // heads
    )
    block = BlockSpec(mixer=attention, mlp=MlpSpec(ffn_hidden=4 * hidden, gated=True))
    return ModelSpec(
        name="small",
        hidden=hidden,
        vocab=4096,
        blocks=(BlockRun(block=block, count=layers),),
        source="made for tests",
        model_type="llama",
    )


def with_block(model: ModelSpec, **changes: Any) -> ModelSpec:
    """The model with these fields of each of its blocks changed."""
    runs = [replace(run, block=replace(run.block, **changes)) for run in model.blocks]
    return replace(model, blocks=tuple(runs))


def with_part(model: ModelSpec, part: str, **changes: Any) -> ModelSpec:
    """The model of one kind of block with these fields of its ``mixer``, ``mlp`` or ``moe`` changed."""
    (run,) = model.blocks
    return with_block(model, **{part: replace(getattr(run.block, part), **changes)})


def experts_model(model: ModelSpec | None = None, **changes: Any) -> ModelSpec:
    """The small model with experts in place of its feed-forward network."""
    moe = MoeSpec(**{"num_experts": 8, "topk": 2, "expert_ffn_hidden": 512} | changes)
    return with_block(model or small_model(), mlp=None, moe=moe)


def cluster(*, memory_gib: float = 80.0, gpus_per_node: int = 8) -> ClusterSpec:
    """Eight GPUs a node, as the flat cost model prices them."""
    return ClusterSpec(
        name="flat",
        gpu=GpuSpec(
            name="flat",
            architecture=read_architecture("cpu", root=ROOT),
            peak_flops={"bf16": 100e12},
            memory_bytes=memory_gib * 2**30,
            memory_bandwidth=1e12,
            num_sms=100,
            boost_clock_hz=0.0,
            l2_bytes=0.0,
            power_w=0.0,
        ),
        gpus_per_node=gpus_per_node,
        domains=(
            NetworkDomain(name="inside", link="", ranks=gpus_per_node, bandwidth=100e9, latency_s=0.0),
            NetworkDomain(name="outside", link="", ranks=0, bandwidth=10e9, latency_s=0.0),
        ),
        nics_per_node=gpus_per_node,
        max_nodes=4096,
        sources={},
    )


def question(
    *,
    model: ModelSpec | None = None,
    world_size: int = 16,
    sequences: int = 64,
    seq_len: int = 1024,
    preset: FrameworkPreset = INTERNEVO,
    cost_model: FlatCostModel | None = None,
    memory_gib: float = 80.0,
) -> Problem:
    """A question over the flat cost model."""
    job = JobSpec(
        world_size=world_size,
        seq_len=seq_len,
        global_batch_tokens=sequences * seq_len,
        preset=preset,
        precision=precision_of(preset),
    )
    machine = cluster(memory_gib=memory_gib)
    return Problem(
        model=model or small_model(),
        job=job,
        cluster=machine,
        op_timer=OpTimer(cost_model=cost_model or FlatCostModel(), domain_ranks=machine.scale_up_ranks),
    )


def request(config: str, world_size: int, **fields: Any) -> Request:
    """A request about a shipped config."""
    return Request(root=ROOT, config=ROOT / "configs" / config, world_size=world_size, **fields)


def gpt_request(**fields: Any) -> Request:
    """7B_gpt on 16 H100s: a search of few plans, without pipelines."""
    sizes = {"seq_len": 2048, "global_batch_tokens": 2**20}
    return request("7B_gpt.toml", 16, cluster="h100-sxm", framework="megatron", **sizes, **fields)


def model_flops(model: ModelSpec, job: JobSpec) -> float:
    """FLOPs of one training sequence, forward and backward, with the whole attention matrix."""
    return sum(product.flops for product in products(model, job))
