"""The errors a user can cause or meet.

Scripts print ``str(error)`` as one line and exit with status 2. Everything that is not a
``UserError`` is a bug of ours and keeps its traceback.
"""

from collections.abc import Mapping


class UserError(Exception):
    """Something the user can mend; the message says what, where and what is allowed."""

    def __reduce__(self) -> tuple[object, ...]:
        """Returns how pickle makes it anew, whatever its constructor takes: an error may come from another process."""
        return BaseException.__new__, (type(self), *self.args), vars(self)


class ConfigError(UserError):
    """A setting that cannot be used: which file, which key, which value, what is allowed."""

    def __init__(self, where: str, key: str, value: object, allowed: str) -> None:
        self.where = where
        self.key = key
        self.value = value
        self.allowed = allowed
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{where}: {key} = {shown}: {allowed}")


class CommandLineError(UserError):
    """Options that a program does not have, or that lack what they need; the message names the program."""


class MissingCurveError(UserError):
    """No measurement answers the question; the message names the command that would measure it."""

    def __init__(self, *, key: str, command: str) -> None:
        self.key = key
        self.command = command
        super().__init__(f"no curve for {key}; measure it with: {command}")


class NoFeasiblePlanError(UserError):
    """Every plan was rejected.

    ``rejected`` maps a reason to the number of plans it removed; ``nearest_miss`` says in words
    which plan came closest and by how much it failed; ``change`` the cheapest change after which a
    plan fits ("" if none was searched for).
    """

    def __init__(self, *, rejected: Mapping[str, int], nearest_miss: str, change: str = "") -> None:
        self.rejected = dict(rejected)
        self.nearest_miss = nearest_miss
        self.change = change
        reasons = ", ".join(
            f"{reason}: {count}" for reason, count in sorted(rejected.items(), key=lambda item: -item[1])
        )
        cheapest = f"; cheapest change: {change}" if change else ""
        super().__init__(f"no plan fits: {self.reason}{cheapest}; rejected: {reasons}")

    @property
    def reason(self) -> str:
        """Returns the nearest miss if a plan came as far as memory, else the most frequent reason."""
        if "GiB" in self.nearest_miss:
            return f"nearest miss: {self.nearest_miss}"
        return max(self.rejected, key=lambda reason: self.rejected[reason], default="no plan")


class ExportError(UserError):
    """A plan that a file format has no words for."""


class ProfileError(UserError):
    """A file that is not a profile, has another schema, or is damaged."""
