"""Placement policies: which node and which devices a need gets, where several would do.

A pool names its policy (`schemas.requests.PoolApply`). ``best-fit``, the
default, is `ledger.core.placing.placement`'s own; the others are a `Measure` each: a
number for what is free on one node, and the place is taken where taking it
lowers that number least.

*Tie rule*: of equal places the node whose name sorts first, on it the device
with the least room that is enough, then the least UUID. Every number is an
integer, so the same state gives the same choice on every machine (S1). A policy
chooses among all devices of the pool that match, whatever their model; gangs
and MIG slices are placed by `ledger.core.placing.placement` under every policy.

``first-fit``
    The tie rule and nothing else.
``fgd``
    Fragmentation Gradient Descent (Weng et al., USENIX ATC'23).
``least-waste``
    What is free is worth what the workload can make of it; takes what is worth least.

The last two need to know the workload: `schemas.placement.PlacementApply`, a record
that ``gpuledger pool learn`` makes of the requests received.
"""
