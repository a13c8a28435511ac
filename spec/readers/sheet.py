"""A TOML table read strictly: wrong type, missing or unknown key, implausible figure -> ConfigError."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spec.errors import ConfigError

# Smallest and largest believable figure, in the unit of the key. They exist to catch a figure in
# another unit (GB for bytes, TFLOP/s for FLOP/s, microseconds for seconds), not to judge hardware.
LIMITS: dict[str, tuple[float, float]] = {
    "memory_bytes": (1e8, 1e14),
    "memory_bandwidth": (1e9, 1e15),
    "boost_clock_hz": (1e8, 1e11),
    "l2_bytes": (0.0, 1e12),
    "power_w": (1.0, 1e5),
    "bandwidth": (1e6, 1e14),
    "link_bandwidth": (1e8, 1e13),
    "latency_s": (0.0, 1e-1),
}
FLOPS_LIMITS = (1e9, 1e19)


def is_sourced(figure: str, sources: Mapping[str, str]) -> bool:
    """Whether a figure (dotted key path) or a table around it has a source."""
    parts = figure.split(".")
    return any(".".join(parts[:length]) in sources for length in range(1, len(parts) + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One table of the file ``where``; ``prefix`` is its dotted path in the file."""

    where: str
    table: Mapping[str, object]
    prefix: str = ""

    def path(self, key: str) -> str:
        """The dotted path of a key of this table."""
        return f"{self.prefix}.{key}" if self.prefix else key

    def refuse(self, key: str, value: object, allowed: str) -> ConfigError:
        """The error for a key of this table."""
        return ConfigError(where=self.where, key=self.path(key), value=value, allowed=allowed)

    def only(self, keys: tuple[str, ...]) -> None:
        """Refuse a key outside ``keys``."""
        for key in self.table:
            if key not in keys:
                raise self.refuse(key, self.table[key], f"unknown key; known: {', '.join(keys)}")

    def value(self, key: str, allowed: str) -> object:
        """The value of a key that must be there."""
        if key not in self.table:
            raise self.refuse(key, None, f"missing; expected {allowed}")
        return self.table[key]

    def text(self, key: str) -> str:
        """A string that is not empty."""
        value = self.value(key, "text")
        if not isinstance(value, str) or not value.strip():
            raise self.refuse(key, value, "text that is not empty")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings (may be empty or left out)."""
        value = self.table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refuse(key, value, "a list of texts")
        return tuple(value)

    def choice(self, key: str, known: tuple[str, ...]) -> str:
        """One of a few words."""
        value = self.value(key, f"one of {', '.join(known)}")
        if not isinstance(value, str) or value not in known:
            raise self.refuse(key, value, f"one of {', '.join(known)}")
        return value

    def flag(self, key: str) -> bool:
        """True or false; false when left out."""
        value = self.table.get(key, False)
        if not isinstance(value, bool):
            raise self.refuse(key, value, "true or false")
        return value

    def count(self, key: str, *, minimum: int) -> int:
        """A whole number of at least ``minimum``."""
        value = self.value(key, f"a whole number >= {minimum}")
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= 10**7:
            raise self.refuse(key, value, f"a whole number from {minimum} to 10000000")
        return value

    def number(self, key: str, limits: tuple[float, float] | None = None) -> float:
        """A finite number within ``limits`` (by default those of the key's unit)."""
        low, high = limits or LIMITS[key]
        allowed = f"a number from {low:g} to {high:g} in base units (bytes, bytes/s, FLOP/s, s, Hz, W)"
        value = self.value(key, allowed)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(key, value, allowed)
        if not math.isfinite(value) or not low <= value <= high:
            raise self.refuse(key, value, allowed)
        return float(value)

    def child(self, key: str) -> "Sheet":
        """A table inside this one."""
        value = self.value(key, "a table")
        if not isinstance(value, dict):
            raise self.refuse(key, value, "a table")
        return Sheet(where=self.where, table=value, prefix=self.path(key))

    def children(self, key: str) -> tuple["Sheet", ...]:
        """The tables of an array of at least one; each is named by its ``name`` in paths."""
        value = self.value(key, f"at least one [[{key}]] table")
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise self.refuse(key, value, f"at least one [[{key}]] table")
        names = [item.get("name") for item in value]
        if len(set(map(str, names))) < len(names):
            raise self.refuse(f"{key}.name", names, "a different name for each table")
        return tuple(
            Sheet(where=self.where, table=item, prefix=f"{self.path(key)}.{item.get('name', index)}")
            for index, item in enumerate(value)
        )

    def figures(self) -> tuple[str, ...]:
        """Dotted paths of all numbers in this table and the tables inside it."""
        found: list[str] = []
        for key, value in self.table.items():
            if isinstance(value, dict):
                found.extend(self.child(key).figures())
            elif isinstance(value, list) and value and isinstance(value[0], dict):
                for table in self.children(key):
                    found.extend(table.figures())
            elif isinstance(value, int | float) and not isinstance(value, bool):
                found.append(self.path(key))
        return tuple(found)
