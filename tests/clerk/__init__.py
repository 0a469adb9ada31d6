"""A second ledger, written to be obviously right: pencil, paper, and no function of the core.

It knows nothing of lifecycles, indexes or schedules. It is told what nodes said and
what was decided, and refuses any decision that a careful clerk would refuse.
"""
