"""Host-side costs a sheet can only assume."""

RELATIVE_STD = 0.5  # Assumption: hosts and frameworks differ by this much

# ``launch``, Assumption: an eager framework launches one kernel in about 5 microseconds (dispatch, autograd
# and the driver's launch of 2 to 3 microseconds). ``call``: a forward of torch.nn.Linear issued from Python
# on the Xeon 8480C of a DGX H100 (TransformerEngine issue 2053); other hosts by ClusterSpec.host_slowdown.
HOST_SECONDS: dict[str, float] = {"launch": 5.0e-6, "call": 13.48e-6}
