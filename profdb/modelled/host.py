"""Host-side costs a sheet can only assume."""

RELATIVE_STD = 0.5  # Assumption: hosts and frameworks differ by this much

# ``launch``, Assumption: an eager framework launches one kernel in about 5 microseconds (dispatch, autograd
# and the driver's launch of 2 to 3 microseconds). ``call``: a forward of torch.nn.Linear issued from Python
# on the Xeon 8480C of a DGX H100 (TransformerEngine issue 2053).
HOST_SECONDS: dict[str, float] = {"launch": 5.0e-6, "call": 13.48e-6}
# Of a launch the driver's: an empty kernel beside an Intel processor and H100 (arXiv 2504.11750 table V).
DRIVER_SECONDS: dict[str, float] = {"launch": 2.3746e-6, "call": 0.0}


def seconds_of(kind: str, host_slowdown: float, driver_slowdown: float) -> float:
    """Seconds of a launch or a call on a host that is so many times slower than a DGX H100's in Python and PyTorch's
    dispatch, and in the driver. KeyError for another kind."""
    driver = DRIVER_SECONDS[kind]
    return (HOST_SECONDS[kind] - driver) * host_slowdown + driver * driver_slowdown
