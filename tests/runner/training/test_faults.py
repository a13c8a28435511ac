"""What a rank is inside of, told from its frames."""

from types import FrameType
from typing import Any

import torch.distributed as dist

from runner.training.run import place_of


def frame_in_torch(group: object) -> FrameType:
    """A frame of a function all_reduce of torch.distributed that holds ``group``."""
    names: dict[str, Any] = {"__name__": "torch.distributed.distributed_c10d"}
    exec("def all_reduce(group):\n    import sys\n    return sys._getframe()\n", names)  # noqa: S102
    frame = names["all_reduce"](group)
    assert isinstance(frame, FrameType)
    return frame


def test_a_group_that_torch_has_just_taken_apart_has_no_ranks() -> None:
    assert place_of([frame_in_torch(dist.ProcessGroup(0, 2))]) == "all_reduce"


def test_work_without_a_group_is_told_by_its_name() -> None:
    assert place_of([frame_in_torch(None)]) == "all_reduce"
