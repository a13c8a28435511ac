"""Which stage of a plan's pipeline works longest on a micro-batch, and what it holds."""

from dataclasses import dataclass

from solver.pipeline.stages import StageTable
from spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestStage:
    """Stages ``first`` to ``last`` (from 1) of ``stages``, which are alike; ``layers`` decoder layers and
    ``predictions`` prediction blocks in each, and whether they hold the embedding or the head."""

    first: int
    last: int
    stages: int
    layers: int
    predictions: int
    embedding: bool
    head: bool

    def words(self) -> str:
        """``stage 16 of 16: 7 layers, head``."""
        if self.stages == 1:
            which = "the only stage"
        elif self.first == self.last:
            which = f"stage {self.first} of {self.stages}"
        else:
            which = f"stages {self.first} to {self.last} of {self.stages}, all alike"
        held = [f"{self.layers} layer{'s' * (self.layers != 1)}"]
        held += [f"{self.predictions} prediction block{'s' * (self.predictions > 1)}"] * bool(
            self.predictions
        )
        held += ["embedding"] * self.embedding + ["head"] * self.head
        return f"{which}: {', '.join(held)}"


def slowest_stage(model: ModelSpec, table: StageTable, row: int, stages: int) -> SlowestStage:
    """Row ``row`` of the stage table of a plan with ``stages`` pipeline stages."""
    kinds = len(model.blocks)
    predictions = sum(
        int(column[row]) for at, column in enumerate(table.layers) if model.blocks[at % kinds].block.mtp
    )
    first = int(table.position[row])
    return SlowestStage(
        first=first + 1,
        last=first + int(table.count[row]),
        stages=stages,
        layers=sum(int(column[row]) for column in table.layers) - predictions,
        predictions=predictions,
        embedding=bool(table.embedding[row]),
        head=bool(table.head[row]),
    )
