"""What a node's GPUs say of themselves, read through NVML.

From the outside in: `watchdog` asks a child process (`child`), which answers with `ops`,
which read with `inventory` and `use`, which make every single call through `calls`.
`report` turns what was read into what the ledger is told. Nothing else imports ``pynvml``.
"""
