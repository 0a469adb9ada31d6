"""Handing a grant over: in the words of what uses the devices, and to a command that runs here.

`ledger.core.placing.grant` says what is given; here it is said to CUDA, to containers (CDI), to
Kubernetes (Dynamic Resource Allocation, device plugin) and to Slurm, a pure function for
each. `wrapper` runs a command under a lease and ends the lease with it.
"""
