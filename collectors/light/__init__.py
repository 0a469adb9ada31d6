"""Nodes of virtual time: an agent's promises without its code (docs/design/0005)."""
