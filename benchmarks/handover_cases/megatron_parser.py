"""Megatron-LM's own parser on exported flags; a program, for it stands in for much of the machine.

    python megatron_parser.py CHECKOUT < cases.json

Reads a list of exports, prints a list of {name, refused}: parse_args, validate_args and the TransformerConfig
built from them (megatron/training/arguments.py, core_transformer_config_from_args).
"""

import contextlib
import importlib
import io
import json
import os
import sys
import typing
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
import torch._dynamo  # finds out whether triton is there, before a stand-in is

sys.path.insert(0, str(Path(__file__).resolve().parent))
from stand_ins import MISSING, Finder, StandIn

SOME_GPU = SimpleNamespace(major=9, minor=0, name="GPU", total_memory=80 * 2**30, multi_processor_count=132)


def arguments_of(checkout: Path) -> ModuleType:
    """megatron.training.arguments, without the start-up code of megatron.training."""
    sys.meta_path.insert(0, Finder(MISSING))  # before a folder of the checkout is taken for one of them
    sys.path.insert(0, str(checkout))
    if not hasattr(typing, "override"):  # Python 3.12
        typing.override = lambda function: function  # type: ignore[attr-defined]
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[assignment]
    torch.cuda.get_device_properties = lambda *_: SOME_GPU  # type: ignore[assignment]
    package = "megatron.training"
    sys.modules[package] = StandIn(package, [str(checkout / "megatron" / "training")])
    return importlib.import_module("megatron.training.arguments")


def refusal(arguments: ModuleType, text: str, world: int) -> str | None:
    """The first line of what Megatron-LM says against the flags, or None."""
    flags = [word for line in text.splitlines() if not line.startswith("#") for word in line.split()]
    # what is the user's, and kernels of Transformer Engine, which is not here
    own = ["--no-rope-fusion", "--train-iters", "1", "--lr", "1e-4", "--mock-data"]
    own += ["--tokenizer-type", "NullTokenizer"]
    sys.argv = ["pretrain_gpt.py", *flags, *own]
    os.environ |= {"WORLD_SIZE": str(world), "RANK": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            parsed = arguments.validate_args(arguments.parse_args())
            arguments.core_transformer_config_from_args(parsed)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except (AssertionError, ValueError, RuntimeError, TypeError, AttributeError, ImportError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


def main() -> None:
    """Every export of standard input."""
    warnings.simplefilter("ignore")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        arguments = arguments_of(Path(sys.argv[1]))
    cases = json.load(sys.stdin)
    print(
        json.dumps(
            [
                {"name": case["name"], "refused": refusal(arguments, case["text"], case["world"])}
                for case in cases
            ]
        )
    )


if __name__ == "__main__":
    main()
