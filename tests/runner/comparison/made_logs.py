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


def _lines(form: str, *values: tuple[float | str, ...]) -> str:
    return "".join(form.format(*each) + "\n" for each in values)


DEEPSPEED_BEFORE = "".join(
    f"[2022-08-29 06:58:56,176] [INFO] [timer.py:198:stop] 0/{step}, RunningAvgSamplesPerSec=50.0, "
    f"CurrSamplesPerSec={rate}, MemAllocated=1.5GB, MaxMemAllocated=1.75GB\n"
    for step, rate in ((10, 40.0), (20, 64.0), (30, 80.0))
)
BRIDGE = (
    "[Rank 0] (after 1 iterations) memory (GB) | mem-allocated-gigabytes: 1.5 | mem-max-allocated-gigabytes: 1.75"
    " | mem-max-active-gigabytes: 1.8 | mem-max-reserved-gigabytes: 2.5 | mem-alloc-retires: 0\n"
) + _lines("Step Time : {:.2f}s GPU utilization: 1.0MODEL_TFLOP/s/GPU", (9.0,), (2.0,), (1.5,), (1.25,), (1.1,))
NANOTRON = (
    " Memory usage: 1024.00MiB. Peak allocated 1536.00MiB. Peak reserved: 2048.00MiB\n"
    + "\x1b[2;3m01/01 00:00:00 [INFO|DP=0|TP=0|node1]\x1b[0m: "
).join(
    _lines(
        "iteration: {} / 100 | consumed_tokens: 2.05K | elapsed_time_per_iteration_ms: {} | tokens_per_sec: 1.64K |",
        each,
    )
    for each in ((1, "9K"), (2, "2K"), (3, "2K"), (4, "1.25K"), (5, "988"))
)
NEMO = _lines(
    "Training epoch 0, iteration {0}/99 | lr: 1e-06 | global_batch_size: 8 | global_step: {0} | "
    "reduced_train_loss: 1.3 | train_step_timing in s: {1}",
    *((0, 7.1), (1, 2.5), (2, 1.5), (3, 1.25), (4, 1.125)),
)
NEMO_BAR = "\r".join(
    f"Epoch 0: :   1%|          | {step}/100 [00:1{step}<10:00, reduced_train_loss=7.000, global_step={step}.00, "
    f"consumed_samples={8 * step}.0, train_step_timing in s={seconds}]"
    for step, seconds in ((0, 7.1), (1, 2.5), (2, 1.5), (3, 1.25), (3, 1.25), (4, 1.125))
)
AUTOMODEL = _lines(
    "2026-01-01 00:00:00 | INFO | root | step {} | epoch 0 | loss 7.0000 | grad_norm 1.0000 | lr 1.00e-05 | "
    "mem {:.2f} GiB | tps {:.2f}({:.2f}/gpu) | num_label_tokens 2048",
    *((0, 1.5, 100.0, 25.0), (1, 1.75, 512.0, 128.0), (2, 1.75, 512.0, 128.0), (3, 1.75, 1024.0, 256.0)),
)
AUTOMODEL_BEFORE = _lines(
    "2025-09-01 00:00:00 | INFO | root | step {} | epoch 0 | loss 7.0000 | grad_norm 1.0000 | lr 1.00e-05 | "
    "mem {:.2f} GiB | tps {:.2f} | num_label_tokens 2048",
    *((0, 1.5, 100.0), (1, 1.75, 512.0), (2, 1.75, 512.0), (3, 1.75, 1024.0)),
)
MAXTEXT = _lines(
    "completed step: {}, seconds: {:.3f}, TFLOP/s/device: 1.000, Tokens/s/device: 1.000, total_weights: 2048, loss: 7.0",
    *((0, 30.0), (1, 2.0), (2, 2.0), (3, 1.25), (4, 1.5)),
)
_FOUNDRY = (
    "[{}]:\n\t Train time/batch: 1\n\t Train memory/peak_allocated_mem: 1.7500\n"
    "\t Train memory/peak_reserved_mem: 2.5000\n\t Train throughput/batches_per_sec: 1.0\n"
    "\t Train throughput/samples_per_sec: {:.4f}\n\t Train throughput/device/samples_per_sec: 1.0"
)
FOUNDRY = _lines(_FOUNDRY, *((f"batch={step}/100", rate) for step, rate in ((10, 4.0), (20, 6.4), (30, 8.0))))
# every batch, of a run as long as so many tokens
FOUNDRY_TOKENS = _lines(
    _FOUNDRY, *((f"token={2048 * step}/204800", rate) for step, rate in enumerate((1.0, 2.0, 4.0, 6.4, 8.0), start=1))
)
OLMO = _lines(
    "2026-01-01 00:00:00.000\thost:0\tolmo_core.train:1\tINFO\t[step={}/100,epoch=1,eta=0:10:00]\n    train/CE loss=7.000\n"
    "    gpu_memory/GPU reserved mem (GiB)=2.500\n    throughput/device/TPS=1,024\n    throughput/device/BPS={}\n"
    "    throughput/device/BPS (actual avg)=0.1000",
    *((1, 0.1), (2, 0.4), (3, 0.4), (4, 0.8), (5, 0.5)),
)
# a rate is that of all steps since the start: 4 s until step 10, 9 s until 20, 12.5 s until 30
SWIFT = _lines(
    "{{'loss': 7.0, 'memory(GiB)': 2.5, 'train_speed(iter/s)': {}, 'epoch': 0.1, 'global_step/max_steps': '{}/100'}}",
    *((2.5, 10), (20 / 9, 20), (2.4, 30)),
)
SWIFT_OF_2026 = _lines(
    "{{'loss': '7', 'grad_norm': '1', 'epoch': '0.1', 'global_step/max_steps': '{}/100', 'elapsed_time': '4s', "
    "'remaining_time': '36s', 'memory(GiB)': '2.5', 'train_speed(s/it)': '{}'}}",
    *((10, 0.4), (20, 0.45), (30, 12.5 / 30)),
)
SWIFT_MEGATRON = _lines(
    '{{"loss": 7.0, "iteration": "{}/100", "memory(GiB)": 2.5, "train_speed(s/it)": {}}}',
    *((1010, 0.4), (1020, 0.45), (1030, 12.5 / 30)),
)
AXOLOTL = (
    _lines(
        "{{'loss': '7.0', 'memory/max_active (GiB)': '1.8', 'memory/max_allocated (GiB)': '1.75', "
        "'memory/device_reserved (GiB)': '2.5', 'epoch': '0.1', 'tokens/train_per_sec_per_gpu': '{}'}}",
        *((100.0,), (400.0,), (400.0,), (512.0,), (256.0,)),
    )
    + "{'train_runtime': '15', 'train_samples_per_second': '2.1', 'train_loss': '7.0', 'tokens/train_per_sec_per_gpu': '0'}"
)
HUGGINGFACE = (
    "{'loss': '7.0', 'grad_norm': '1', 'epoch': '0.1'}\n"
    "{'train_runtime': '25', 'train_samples_per_second': '6.4', 'train_steps_per_second': '0.8', 'epoch': '1'}"
)
