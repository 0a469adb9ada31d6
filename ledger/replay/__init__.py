"""The past as good as the present: positions, states at them, and what lies between.

``position``: one notion of a place in the log; ``states``: the fold at a place, from
the nearest snapshot before it; ``diff``, ``trace``, ``bisect`` and ``timeline``: what an
SRE asks after an incident. Everything reads through the log port, so the answer is
the same from Kafka, SQLite and an archive.
"""
