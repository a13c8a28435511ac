"""What the host does so that an operation runs: Python calls and kernel launches of the framework.

A framework issues every operation from one Python thread. *Calls* are what that thread spends in Python,
counted in forwards of ``torch.nn.Linear`` (the first launch of each is part of it); *launches* are further
kernels of the same operation, each a dispatch, an autograd node and a driver call.
"""
