"""How devices are used: samples, windows, and leases that are idle."""
