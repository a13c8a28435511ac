"""What a router keeps for its weight gradient, beside experts that read the same."""

from dataclasses import replace

import pytest

from ops.layout import Layout
from ops.roles import Module, Role
from spec.model import NormPlace
from tests.ops.experts.test_moe_block import EP, HIDDEN, SEQ, WIDTH, model
from tests.ops.layouts import job, written


@pytest.mark.parametrize(
    ("shared", "scaling", "place", "kept"),
    [
        (0, "", NormPlace.BEFORE, 1),  # nobody else keeps it
        (WIDTH, "", NormPlace.BEFORE, 0),  # the shared experts do
        (WIDTH, "delayed", NormPlace.BEFORE, 1),  # theirs is 8 bits wide
        (WIDTH, "current", NormPlace.BEFORE, 0),  # save_original_input: the shared experts keep this one
        (0, "", NormPlace.SHARED, 0),  # the mixer's norm is theirs too
        (WIDTH, "", NormPlace.SHARED, 0),
    ],
)
def test_the_router_keeps_its_input_where_nobody_else_does(
    shared: int, scaling: str, place: NormPlace, kept: int
) -> None:
    """2 x 256 bytes a token; what shared experts keep is theirs, once, in their own format."""
    asked = job(seq_len=SEQ)
    if scaling:
        precision = replace(asked.precision, linear="fp8", scale_recipe="tensor", scaling=scaling)
        asked = replace(asked, precision=precision)
    one = model(shared_ffn_hidden=shared)
    (run,) = one.blocks
    one = replace(one, blocks=(replace(run, block=replace(run.block, norm_place=place)),))
    piece = written(one, asked, "mtp", Layout.of(8, ep=EP)).blocks[0]
    (router,) = [op for op in piece.forward if op.role is Role.ROUTER]
    assert router.saved_bytes.tolist() == [kept * 2 * SEQ * HIDDEN]
    if shared and not scaling:
        (up,) = [op for op in piece.forward if op.module is Module.SHARED_EXPERTS and op.role is Role.UP]
        assert up.saved_bytes.tolist() == [(place is NormPlace.BEFORE) * 2 * SEQ * HIDDEN]
