"""Layouts of devices in MIG mode: what fits, what is best, what to change."""
