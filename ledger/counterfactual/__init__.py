"""``gpuledger whatif replay``: the same inputs under another policy, what would be different.

``history``: what a log tells of work and nodes; ``work``: how long a lease would run and a
node would take; ``changes``: what is asked to be otherwise; ``world``: the cell as it would
have been; ``sums`` and ``compare``: what both come to, side by side.
"""
