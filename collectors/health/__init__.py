"""Whether a device may be used: what is seen of it, and what it was before."""
