"""Run plans on real processes and compare them with one process: plans_agree.py WORLD '{"NAME": {"tp": 2, ...}, ...}'.

Prints, by name, the relative differences of loss and gradients, the worst of all ranks.
"""

import json
import os
import sys
import tempfile
from dataclasses import replace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ops.recompute import Recompute
from runner.reference.transformer import Experts
from runner.training.trainer import Trainer, TrainingConfig
from solver.plans.plan_table import Plan
from solver.plans.schedules import SCHEDULES
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec

SEQ_LEN, SEQUENCES = 16, 8

ATTENTION = AttentionSpec(kind=AttentionKind.GQA, num_heads=8, num_kv_heads=4, qk_dim=8, v_dim=8)
DENSE = BlockSpec(mixer=ATTENTION, mlp=MlpSpec(ffn_hidden=96, gated=True))
ROUTED = BlockSpec(mixer=ATTENTION, moe=MoeSpec(num_experts=4, topk=2, expert_ffn_hidden=32, shared_ffn_hidden=32))


OTHER = replace(DENSE, mixer=replace(ATTENTION, window=5, qk_norm=True))


def model_of(kind: str) -> ModelSpec:
    """``experts`` in every other layer; ``other``: windows, norms of queries and keys, and one table at both ends."""
    runs = {
        "dense": (BlockRun(block=DENSE, count=4),),
        "experts": (BlockRun(block=DENSE, count=2), BlockRun(block=ROUTED, count=2)),
        "other": (BlockRun(block=OTHER, count=2), BlockRun(block=DENSE, count=2)),
    }[kind]
    tied = kind == "other"
    return ModelSpec(name="tiny", hidden=64, vocab=128, blocks=runs, source="test", tied_embeddings=tied)


def kind_of(settings: dict[str, object]) -> str:
    return next((kind for kind in ("experts", "other") if settings.get(kind)), "dense")


def training_of(settings: dict[str, object]) -> TrainingConfig:
    """A plan by its fields, and whether its model has experts, and how cp cuts."""
    settings = dict(settings)
    kind, way = kind_of(settings), str(settings.pop("context_parallel", "all_gather"))
    for flag in ("experts", "other"):
        settings.pop(flag, None)
    settings["recompute"] = Recompute(str(settings.get("recompute", "none")))
    settings["schedule"] = SCHEDULES[str(settings.get("schedule", "1f1b"))]
    plan = Plan(strategy=str(settings.pop("strategy", "msp")), preset="fsdp", **settings)  # type: ignore[arg-type]
    plan = replace(plan, num_micro=SEQUENCES // (plan.dp * plan.micro_batch))
    return TrainingConfig(model=model_of(kind), plan=plan, seq_len=SEQ_LEN, context_parallel=way)


def whole(gradient: torch.Tensor) -> torch.Tensor:
    full = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return full.detach()


def gradients_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Whole gradients by name; experts one by one."""
    result = {}
    for stage in trainer.stages:
        for path, module in stage.named_modules():
            for name, parameter in module.named_parameters(prefix=path, recurse=False):
                assert parameter.grad is not None, name
                gradient = whole(parameter.grad)
                if isinstance(module, Experts):
                    result |= {f"{name}.{module.first + at}": one for at, one in enumerate(gradient)}
                else:
                    result[name] = gradient
    return result


def run(settings: dict[str, object]) -> tuple[float, dict[str, torch.Tensor], float]:
    """Loss share and gradients of the first step, and the loss share of the second, after an update."""
    trainer = Trainer(training_of(settings), torch.device("cpu"))
    trainer.gradients(*trainer.batch(0))
    first, gradients = trainer.loss_share(), gradients_of(trainer)
    gradients = {name: each.clone() for name, each in gradients.items()}
    trainer.update()
    trainer.gradients(*trainer.batch(1))
    return first, gradients, trainer.loss_share()


def largest_difference(ours: torch.Tensor, alone: torch.Tensor) -> float:
    return float((ours - alone).norm() / alone.norm())


def rank_main(rank: int, world: int, folder: str, cases: dict[str, dict[str, object]]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    alone: dict[str, tuple[float, dict[str, torch.Tensor], float]] = {}
    for settings in cases.values():
        kind = kind_of(settings)
        if kind not in alone:
            alone[kind] = run({kind: True, "micro_batch": 2} if kind != "dense" else {"micro_batch": 2})
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    for name, settings in cases.items():
        first, gradients, second = run(settings)
        reference = alone[kind_of(settings)]
        losses = torch.tensor([first, second], dtype=torch.float64)
        dist.all_reduce(losses)
        worst = torch.tensor(max(largest_difference(each, reference[1][key]) for key, each in gradients.items()))
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        seen: list[list[str] | None] = [None] * world
        dist.all_gather_object(seen, sorted(gradients))
        assert {key for keys in seen for key in keys or ()} == set(reference[1]), name
        if rank == 0:
            result = {
                "loss": abs(float(losses[0]) / reference[0] - 1),
                "gradient": float(worst),
                "next_loss": abs(float(losses[1]) / reference[2] - 1),
            }
            print(json.dumps({"name": name, **result}), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        world = int(sys.argv[1])
        cases = json.loads(sys.argv[2])
        mp.start_processes(rank_main, (world, folder, cases), nprocs=world, start_method="fork")
