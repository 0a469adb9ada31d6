"""What each event does to the state (`ledger.core.evolve`)."""
