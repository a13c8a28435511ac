"""Layers of distinct layouts: written down, sized and timed once in each way to run again that is asked for."""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ops.block import BareOps, ModelOps, bare_ops
from ops.context import has_separate_ends
from ops.layout import Layout
from ops.op import Piece
from ops.recompute.layers import Recompute
from ops.strategies.registry import STRATEGIES
from ops.strategies.sharding import Sharding
from solver.layers.layer_bytes import LayerBytes, layer_bytes
from solver.times.first_layer import as_first
from solver.times.layer_times import LayerTimes, layer_times
from solver.times.op_times import Pricer
from spec.arrays import IntArray
from spec.job import JobSpec
from spec.model import ModelSpec
from spec.program.remembered import Remembered


class Again(NamedTuple):
    """What the backward does not find on the device: the recompute ``mode``, the ``modules`` of layers that run
    again beside it, and those ``offloaded``, of which what they save waits on the host.
    """

    mode: Recompute
    modules: tuple[str, ...] = ()
    offloaded: tuple[str, ...] = ()


class WrittenLayers:
    """The layers of N ``layout`` rows of a model under a job and strategy. What was asked once is known: the
    operations and bytes of each way to run again, and their times by each pricer; where it ``remembers``,
    those of single operations, too, of which several ways to run again share most. With ``parts`` its rows
    are theirs, one part after another."""

    def __init__(
        self,
        model: ModelSpec,
        job: JobSpec,
        layout: Layout,
        strategy: str,
        parts: Sequence["WrittenLayers"] = (),
        *,
        remembers: bool = False,
    ) -> None:
        self.model, self.job, self.layout, self.strategy = model, job, layout, strategy
        self.parts = tuple(parts)
        self.remembers = remembers
        self._bare: BareOps | None = None
        self._ops: dict[Again, ModelOps] = {}
        self._bytes: dict[Again, list[LayerBytes]] = {}
        self._of_piece = Remembered()
        self._pricers: dict[tuple[int, ...], Pricer] = {}

    @staticmethod
    def joined(parts: Sequence["WrittenLayers"]) -> "WrittenLayers":
        """The rows of all parts, which are of one model, job and strategy."""
        first = parts[0]
        layout = Layout.joined([part.layout for part in parts])
        return WrittenLayers(first.model, first.job, layout, first.strategy, parts, remembers=True)

    def __len__(self) -> int:
        return len(self.layout)

    @property
    def sharding(self) -> Sharding:
        """What the strategy does."""
        return STRATEGIES[self.strategy]

    @property
    def bare(self) -> BareOps:
        """Operations before any of them runs again."""
        if self._bare is None:
            self._bare = bare_ops(self.model, self.job, self.layout, self.strategy)
        return self._bare

    def ops(self, again: Again) -> ModelOps:
        """Operations when so much runs again; of layers of which some do, the pieces of those that do and of
        the others.
        """
        if again not in self._ops and again.mode is Recompute.BLOCK:
            kinds = (Recompute.FULL, Recompute.NONE)
            whole, plain = (self.ops(again._replace(mode=kind)) for kind in kinds)
            self._ops[again] = replace(plain, blocks=(*whole.blocks, *plain.blocks))
        elif again not in self._ops:
            self._ops[again] = self.bare.running_again(*again)
        return self._ops[again]

    def bytes(self, again: Again) -> list[LayerBytes]:
        """Of every block kind, embedding and head; runs of equal blocks share one."""
        if again not in self._bytes:
            self._bytes[again] = self._sized(again)
        return self._bytes[again]

    def _sized(self, again: Again) -> list[LayerBytes]:
        if self.parts:
            kinds = list(zip(*(part.bytes(again) for part in self.parts), strict=True))
            stacked = {
                key: LayerBytes.stacked(kind) for key, kind in zip(map(_ids, kinds), kinds, strict=True)
            }
            return [stacked[_ids(kind)] for kind in kinds]
        ops = self.ops(again)
        pieces = (*ops.blocks, ops.embedding, ops.head)
        once = self._of_piece.once
        return [once((piece, layer_bytes), partial(layer_bytes, piece, len(self))) for piece in pieces]

    def placed(self, again: Again) -> tuple[Piece, ...]:
        """Every block kind, then each as a stage's first layer, then embedding and head: what
        solver.layers.stage_passes.piece_weights counts. Runs of equal blocks share a piece."""
        ops = self.ops(again)
        ends = (ops.embedding, ops.head)
        if self.job.preset.data_parallel.gathers_every_forward:
            apart = has_separate_ends(self.job, self.model)
            ends = (self._first(ops.embedding), ops.head if apart else self._first(ops.head))
        return (*ops.blocks, *map(self._first, ops.blocks), *ends)

    def _first(self, piece: Piece) -> Piece:
        return self._of_piece.once((piece, as_first), lambda: as_first(piece))

    def times(
        self, pricer: Pricer, again: Again, *, split: bool = False, rows: IntArray | None = None
    ) -> list[LayerTimes]:
        """Of every ``placed`` piece; ``split`` where the schedule puts weight gradients off. Parts that have
        none of the ``rows`` asked for (None: all are) are not timed: their times are no numbers."""
        if self.parts:
            return self._stacked(
                [
                    part.times(pricer, again, split=split) if wanted else None
                    for part, wanted in zip(self.parts, self._wanted(rows), strict=True)
                ]
            )
        asker = self._pricer(pricer) if self.remembers else pricer
        once, layout = (asker.known or Remembered()).once, self.layout
        return [
            once((piece, layout, split), partial(layer_times, asker, self.job, piece, layout, split=split))
            for piece in self.placed(again)
        ]

    def _pricer(self, pricer: Pricer) -> Pricer:
        """One that tells the same times and knows what of these layers it has told."""
        # It holds what decides a time, so that nothing else can have the identities it is known by.
        return self._pricers.setdefault(_told_by(pricer), pricer.remembering())

    def _wanted(self, rows: IntArray | None) -> list[bool]:
        """Which parts have any of the rows."""
        ends = np.cumsum([len(part) for part in self.parts])
        if rows is None:
            return [True] * len(ends)
        return [
            bool(one) for one in np.bincount(np.searchsorted(ends, rows, side="right"), minlength=len(ends))
        ]

    def _stacked(self, told: Sequence[list[LayerTimes] | None]) -> list[LayerTimes]:
        """The times of all parts, one after another; not a number in parts that were not timed."""
        kinds = next(len(one) for one in told if one is not None)
        known = [
            one or [LayerTimes.unknown(len(part))] * kinds for one, part in zip(told, self.parts, strict=True)
        ]
        together = list(zip(*known, strict=True))
        stacked = {
            key: LayerTimes.stacked(kind) for key, kind in zip(map(_ids, together), together, strict=True)
        }
        return [stacked[_ids(kind)] for kind in together]


def _told_by(pricer: Pricer) -> tuple[int, ...]:
    """The identities of all that decides a time: pricers that remember and those that do not have them in common."""
    return tuple(id(getattr(pricer, one.name)) for one in fields(pricer) if one.compare)


def _ids(kind: Sequence[object]) -> tuple[int, ...]:
    return tuple(map(id, kind))
