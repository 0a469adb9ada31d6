"""Reading and writing the formats that other systems use; pure functions, no I/O.

Each reader takes text and returns what it maps onto and notes: one `fields.Note`
for whatever it met and did not map, by path and line, with the reason. Nothing is
dropped in silence. A text that is not of the format raises `documents.NotTheFormat`
and nothing else. ``docs/formats.md`` has the tables.

- `kueue` and `kueue_write`: ClusterQueue, Cohort, ResourceFlavor and LocalQueue
  to and from ``pool.apply``, ``queue.apply`` and ``quota.apply``.
- `mig_parted`: the ``mig-configs`` of NVIDIA's partition editor.
- `pod`, `slurm`, `nomad`: what asks for devices elsewhere, as a ``request.submit``.
"""
