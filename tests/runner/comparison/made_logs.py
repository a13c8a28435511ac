"""Logs made by the formats of the frameworks' sources (runner.comparison.logged_run names them); their numbers
are made up: 4 GPUs, 8 sequences of 256 tokens a step."""


def _megatron(step: int, ms: float) -> str:
    return (
        f" [2026-01-01 00:00:{step:02}.000000] iteration {step:8d}/{100:8d} | consumed samples: {8 * step:12d} |"
        f" elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 1.0 |"
        f" learning rate: {1e-4:.6E} | global batch size: {8:5d} | lm loss: {7.0:.6E} | loss scale: 1.0 |"
        f" grad norm: 1.000 | number of skipped iterations: {0:3d} | number of nan iterations: {0:3d} |"
    )


_TIMES = ((1, 900.0), (2, 130.0), (3, 120.0), (4, 104.0), (5, 100.0), (6, 150.0), (7, 102.0))
_MEMORY = (
    "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1024.00 | max allocated: 2048.50"
    " | reserved: 3072.00 | max reserved: 3072.00"
)
MEGATRON = "\n".join(
    [
        "using world size: 4, data-parallel size: 2, context-parallel size: 1, hierarchical context-parallel sizes:"
        " None, tensor-model-parallel size: 2, pipeline-model-parallel size: 1",
        _megatron(*_TIMES[0]),
        _MEMORY,
        *(_megatron(*one) for one in _TIMES[1:]),
        "",
    ]
)

INTERNEVO = "".join(
    f"2026-01-01 00:00:0{step} INFO pipeline.py:617 in record_current_batch_training_metrics -- tflops=1.5 "
    f"step={step} loss=7.0 tgs (tokens/gpu/second)={tgs} tgs/last_tgs_1={tgs} tgs/tgs_all={tgs} lr=4e-07 "
    f"loss_scale=65536.0 grad_norm={{'0_default': 1.0}} micro_num=4 num_consumed_tokens={2048 * (step + 1)} "
    f"inf_nan_skip_batches=0 num_samples_in_batch=8 largest_length=256 fwd_bwd_time=0.1 \n"
    for step, tgs in enumerate((500.0, 4000.0, 4500.0, 5120.0, 5000.0))
)


def _torchtitan(rank: int, step: int, memory: float, tps: int) -> str:
    return (
        f"[rank{rank}]:[titan] 2026-01-01 00:00:00,000 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss: {7:7.4f}"
        f"  \x1b[38;2;180;60;0mgrad_norm: {1:7.4f}  \x1b[36mmemory: {memory:5.2f}GiB({4:.2f}%)  \x1b[34mtps: {tps:,}"
        f"  \x1b[36mtflops: {1:,.2f}  \x1b[35mmfu: {1:.2f}%\x1b[39m\n"
    )


TORCHTITAN = "".join(
    _torchtitan(rank, step, memory, tps)
    for step, memory, tps in ((1, 3.0, 300), (10, 3.25, 4000), (20, 3.25, 5120), (30, 3.25, 4096))
    for rank in (0, 1)
) + (
    "[titan] 2026-01-01 00:00:00,000 - root - INFO - \x1b[33mvalidate step: 40  \x1b[32mloss:  7.0000  "
    "\x1b[36mmemory:  9.00GiB(9.00%)  \x1b[34mtps: 9,000\x1b[39m\n"
)

DEEPSPEED = "".join(
    f"[2026-01-01 00:00:00,000] [INFO] [timer.py:264:stop] epoch=0/micro_step={step}/global_step={step}, "
    f"RunningAvgSamplesPerSec={average}, CurrSamplesPerSec={rate}, MemAllocated=1.5GB, MaxMemAllocated=1.75GB\n"
    for step, average, rate in ((10, "50.0", 40.0), (20, "60.1", 64.0), (30, "70.2", 80.0))
)

DEEPSPEED_PIPELINE = "".join(
    f"steps: {step} loss: 7.0000 iter time (s): {seconds:0.3f} samples/sec: {8 / seconds:0.3f}\n"
    for step, seconds in ((10, 0.2), (20, 0.104), (30, 0.102))
)
