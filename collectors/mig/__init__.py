"""A change of a device's MIG partitions, call by call, through crashes and failures."""
