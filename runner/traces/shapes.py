"""What a traced operation was called with: shapes of products and attentions, sizes and groups of collectives."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from runner.traces.names import (
    BACKWARD_NAME,
    NCCL_FUNCTIONS,
    PRODUCTS,
    collective_named,
    nccl_function,
    type_bytes,
)
from runner.traces.nesting import COLLECTIVE_CALL, Call
from runner.traces.ran import BACKWARD, FORWARD, Key, Part, collective_key, product_key
from runner.traces.trace_file import Event

DIMS = "Input Dims"
TYPES = "Input type"
COLLECTIVE = "Collective name"


def key_of_call(call: Call) -> Key:
    """Of a named operation."""
    name = call.event.name
    if name in PRODUCTS:
        return _product(call)
    if name.startswith(COLLECTIVE_CALL):
        return collective_key(collective_named(name) or name, _call_bytes(call.event, None), None)
    return _attention(call.event)


def _product(call: Call) -> Key:
    """By the shapes of both factors; without them where the profiler was not told to record any."""
    direction = BACKWARD if call.backward else FORWARD
    unknown = Key(part=Part.PRODUCT, what="product", direction=direction)
    first = PRODUCTS[call.event.name]
    factors = shapes_of(call.event.args)[first : first + 2]
    if len(factors) < 2 or not all(len(one) in (2, 3) for one in factors):
        return unknown
    left, right = factors
    batch = left[0] if len(left) == 3 else 1
    return product_key(batch, left[-2], left[-1], right[-1], direction)


def _attention(event: Event) -> Key:
    """By the elements of its first operand: the queries, or the gradient of the outputs."""
    tensors = [one for one in shapes_of(event.args) if len(one) >= 3]
    direction = BACKWARD if BACKWARD_NAME.search(event.name) else FORWARD
    shape = (prod(tensors[0]),) if tensors else None
    return Key(part=Part.ATTENTION, what="attention", direction=direction, shape=shape)


def key_of_gloo(call: Call, work: Event | None) -> Key:
    """Of a collective that gloo runs; its work says the format that the call leaves out."""
    name = collective_named(call.event.name) or call.event.name
    return collective_key(name, _call_bytes(call.event, work), None)


def key_of_nccl(kernel: Event, told: Mapping[str, Any], call: Call | None = None) -> Key:
    """Of a kernel of NCCL by what torch says of it (appendCollectiveArgs of Kineto's output_json.cpp), else by the
    ``call`` of c10d that launched it, else by its name."""
    function = NCCL_FUNCTIONS.get(nccl_function(kernel.name) or "", kernel.name)
    if COLLECTIVE not in told and call is not None and call.event.name.startswith(COLLECTIVE_CALL):
        said = collective_named(call.event.name)
        return collective_key(said or function, _call_bytes(call.event, call.work), None)
    said = collective_named(str(told.get(COLLECTIVE, "")))
    each = type_bytes(told.get("dtype"))
    counts = [told.get(f"{way} msg nelems") for way in ("In", "Out")]
    numbers = [one for one in counts if isinstance(one, int)]
    size = max(numbers) * each if numbers and each else None
    ranks = told.get("Group size")
    return collective_key(said or function, size, ranks if isinstance(ranks, int) else None)


def _call_bytes(event: Event, work: Event | None) -> int | None:
    """The largest operand of c10d's: the whole array of an all-gather or a reduce-scatter."""
    dims, types = event.args.get(DIMS), event.args.get(TYPES)
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    told = [each for each in map(type_bytes, [*types, *_types(work)]) if each]
    elements = max((_elements(one) for one in dims), default=0)
    return elements * told[0] if elements and told else None


def _types(work: Event | None) -> Sequence[object]:
    held = work.args.get(TYPES) if work is not None else None
    return held if isinstance(held, list) else []


def _elements(dims: object) -> int:
    """Of a tensor's sides, or of a list of tensors; 0 for what is none."""
    if not isinstance(dims, list) or not dims:
        return 0
    if all(isinstance(side, int) for side in dims):
        return prod(dims)
    return sum(_elements(one) for one in dims)


def shapes_of(args: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Sides of each input; empty for what is no tensor."""
    dims = args.get(DIMS)
    if not isinstance(dims, list):
        return []
    plain = [
        one if isinstance(one, list) and all(isinstance(side, int) for side in one) else [] for one in dims
    ]
    return [tuple(one) for one in plain]
