"""The strategies that a plan can name, and the only list of them."""

from ops.strategies.isp import ShardedWeights
from ops.strategies.mtp import MegatronTensor
from ops.strategies.sequence_parallel import SequenceParallel
from ops.strategies.sharding import Sharding
from ops.strategies.ulysses import Ulysses
from spec.errors import ConfigError

KNOWN: tuple[Sharding, ...] = (
    MegatronTensor(),
    SequenceParallel(regather=False),
    SequenceParallel(regather=True),
    ShardedWeights(),
    Ulysses(),
)
STRATEGIES: dict[str, Sharding] = {one.name: one for one in KNOWN}


def strategy_named(name: str, *, where: str) -> Sharding:
    """The strategy of that name; raises ConfigError naming the known ones."""
    if name not in STRATEGIES:
        raise ConfigError(where=where, key="strategy", value=name, allowed=f"one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
