"""The log: its port, the adapters that implement it, and its topics."""
