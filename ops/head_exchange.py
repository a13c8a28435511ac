"""Tokens exchanged for heads around the attention kernel, and back (Ulysses, arXiv 2309.14509 sec. 3)."""

from dataclasses import replace

from ops.op import Comm, Phase, Piece


def mirrored(forward: tuple[Comm, ...]) -> Piece:
    """Exchanges, and the same ones in the backward, last first."""
    backward = tuple(replace(op, phase=Phase.INPUT_GRAD) for op in reversed(forward))
    return Piece(forward=forward, backward=backward)
