"""What a micro-batch takes on every stage."""

from dataclasses import dataclass

from spec.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """One micro-batch through each stage row, or each chunk row; ``weight_s`` is the part of ``backward_s``
    that only makes weight gradients, ``pair_s`` what a chunk's forward takes beside the backward of the
    stage's other chunk (solver.pipeline.pairs), None where none does; ``products`` the share of both passes
    that matrix products take, None for none; ``units`` how many parts of a stage row are gathered and reduced
    one after another once a step, None for one."""

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    pair_s: FloatArray | None = None
    products: FloatArray | None = None
    units: FloatArray | None = None

    def take(self, rows: IntArray) -> "PassTimes":
        """The rows asked for, an array of any shape."""
        return PassTimes(
            forward_s=self.forward_s[rows],
            backward_s=self.backward_s[rows],
            weight_s=self.weight_s[rows],
            pair_s=None if self.pair_s is None else self.pair_s[rows],
            products=None if self.products is None else self.products[rows],
            units=None if self.units is None else self.units[rows],
        )
