"""A seeded simulation: everybody at once, for thousands of steps, under the clerk's eyes.

``python -m tests.simulation --seeds 1000 --steps 2000 --workers 2`` runs 1,000 histories
and exits with 1 if one of them broke anything; ``--shrink`` makes what broke small.

At every step the clerk (tests/naive.py) follows all events of the decision and refuses
what a careful clerk would refuse: holders, memory, CPU, quotas, budgets, evictions,
plans, replicas, answers; vGPUs of one type, whole IOMMU groups, media sessions, memory
within the factor; places of slices, and nothing used destroyed; architectures, drivers,
failure domains, NVLink domains, licences, fresh links; reservations; and that what is on
record as asked is what was asked, through template, route and the model's rule. Every 25th step its
tables are compared with the ledger's, what
each quota may still hold is worked out in both ways, all invariants of the core are
checked, and the input is decided again from a snapshot of the state before. At the end
everything is mended and time passes: all must be answered, clean and closed; and the log
is folded again, whole, and as a snapshot and a tail.

A failed seed belongs into failed_seeds.txt, and as a small history into
tests/test_regressions.py before it is mended.
"""
