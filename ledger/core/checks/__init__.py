"""Invariants that `ledger.core.invariants` runs with its own."""
