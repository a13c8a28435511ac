"""When one curve may answer for another: the whole policy, and how much it costs in error.

A question whose own labels (layout, dtype, kernel, ...) were never measured is answered by the curve
with the smallest total penalty among those allowed here, at the asked work: FLOPs and bytes are those of
the question, only the efficiency is borrowed. Such an answer is EXTRAPOLATED, or keeps the origin of
modelled or transferred samples, and the penalty joins its error. Words without a rule never
stand in for each other: no bf16 curve answers for fp8, no flash kernel for unfused attention, no
all-gather for an all-to-all.

Assumption: every penalty is a relative standard error chosen by us, none is measured; profiles that
hold the asked labels never use them.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from profdb.cases import Family

SAME_WIDTH = frozenset({"bf16", "fp16"})
"""16-bit formats run at one rate on tensor cores (vendor sheets list one figure for both)."""

ANY_KERNEL = 0.25
"""A memory-bound kernel told from another one's bytes/s."""

FP8_RECIPES = ("tensor", "row", "block", "mx")
"""How fp8 operands are scaled; the products themselves run at one rate."""

RULES: dict[tuple[Family, str], dict[tuple[str, str], float]] = {
    (Family.GEMM, "layout"): {
        ("TN", "NN"): 0.15,
        ("TN", "NT"): 0.2,
        ("NN", "NT"): 0.15,
        ("NN", "TN"): 0.15,
        ("NT", "NN"): 0.15,
        ("NT", "TN"): 0.2,
    },
    (Family.GEMM, "scale_recipe"): {
        (asked, held): 0.25 for asked in FP8_RECIPES for held in FP8_RECIPES if asked != held
    },
    (Family.GEMM, "bias"): {("1", "0"): 0.05, ("0", "1"): 0.05},
    (Family.ATTENTION, "direction"): {("backward", "forward"): 0.3},
    (Family.ATTENTION, "mask"): {
        ("full", "causal"): 0.15,
        ("causal", "full"): 0.2,
        ("varlen", "causal"): 0.15,
        ("window", "causal"): 0.25,
        ("window", "full"): 0.3,
    },
    (Family.ATTENTION, "kernel"): {("flash", "cudnn"): 0.25, ("cudnn", "flash"): 0.25},
    (Family.MEMORY_BOUND, "direction"): {("backward", "forward"): 0.2, ("forward", "backward"): 0.2},
    (Family.COLLECTIVE, "collective"): {
        ("reduce_scatter", "all_gather"): 0.2,
        ("all_gather", "reduce_scatter"): 0.2,
    },
}
"""(family, word): {(asked, held): penalty}. Reduce-scatter and all-gather move the same bytes along the
same ring in opposite order (Chan et al. 2007, Concurrency Computat. 19, sec. 5)."""

RULES[(Family.GROUPED_GEMM, "layout")] = RULES[(Family.GEMM, "layout")]
RULES[(Family.GROUPED_GEMM, "scale_recipe")] = RULES[(Family.GEMM, "scale_recipe")]

DTYPE_LABELS = frozenset({"dtype", "dtype_in"})
BYTES_ONLY = frozenset({Family.MEMORY_BOUND, Family.OPTIMIZER})
"""Families whose time is bytes moved: another number format costs its bytes."""


def label_penalty(family: Family, word: str, asked: str, held: str) -> float | None:
    """Relative error of reading ``held`` where ``asked`` is meant; 0 for equal words, None: not allowed."""
    if asked == held:
        return 0.0
    if family is Family.MEMORY_BOUND and word == "kernel":
        return ANY_KERNEL
    if family in BYTES_ONLY and word.endswith("dtype"):
        return 0.15
    if word in DTYPE_LABELS and {asked, held} <= SAME_WIDTH:
        return 0.05
    return RULES.get((family, word), {}).get((asked, held))


def stand_ins(
    family: Family, asked: Mapping[str, str], held: Iterable[Mapping[str, str]]
) -> list[tuple[float, Mapping[str, str]]]:
    """Keys of ``held`` that may answer for ``asked``, smallest penalty first (the asked key itself has
    penalty 0). Penalties of several words add as independent errors."""
    allowed: list[tuple[float, Mapping[str, str]]] = []
    for key in held:
        penalties = [label_penalty(family, word, asked[word], key[word]) for word in asked]
        known = [penalty for penalty in penalties if penalty is not None]
        if len(known) == len(penalties):
            allowed.append((float(np.sqrt(np.sum(np.square(known)))), key))
    return sorted(allowed, key=lambda found: (found[0], sorted(found[1].items())))
