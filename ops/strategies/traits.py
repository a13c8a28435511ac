"""What is true of a strategy whatever its degrees are."""

from dataclasses import dataclass, field

from ops.strategies.weight_copies import WeightCopies
from spec.collectives import Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is left out holds for tensor parallelism as Megatron-LM does it."""

    copies: WeightCopies = field(default_factory=WeightCopies)
    """Who owns its weights, and over which ranks gradients are summed and ZeRO shards."""
    uncut: bool = False
    """Plans that cut nothing are listed as this strategy's; of all strategies one says so."""
    assembles: tuple[Collective | None, Collective | None] = (Collective.ALL_REDUCE, None)
    """What brings the embedding's output together forward, and its gradient backward."""
    cuts_vocabulary: bool = True
    """The head's columns, and so the logits, are cut over tp."""
    exchanges_heads: bool = False
    """Tokens are exchanged for heads around the attention kernel."""
    repeats_kv_heads: bool = False
    """Key and value heads fewer than tp are repeated, whatever the framework."""
    cuts_experts: bool = True
    """Matrices of experts may be cut over etp."""
    pipelined: bool = True
    """It runs in several pipeline stages."""
    deepest_stage_with_ep: int = 3
    """The deepest ZeRO stage that experts cut over ep run beside."""
    shares_gathered_input: bool = False
    """Two linears that read one gathered input keep it as one tensor, whose gradient is reduced once."""
