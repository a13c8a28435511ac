"""Host-side costs a sheet can only assume."""

RELATIVE_STD = 0.5  # Assumption: hosts and frameworks differ by this much

# Assumption: an eager framework launches one kernel in about 5 microseconds (dispatch, autograd and
# the driver's launch of 2 to 3 microseconds).
HOST_SECONDS: dict[str, float] = {"launch": 5.0e-6}
