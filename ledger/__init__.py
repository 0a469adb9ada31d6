"""gpuledger: an event-sourced allocation ledger for pooled and partitioned GPUs."""
