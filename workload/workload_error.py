"""The error of the files this package reads."""

from spec.errors import UserError


class WorkloadError(UserError):
    """A workload, topology, compute-time or bandwidth file that cannot be used: file, line, reason."""
