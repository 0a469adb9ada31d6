"""Links between hosts, measured."""
