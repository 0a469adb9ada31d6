"""What each input leads to, and the turn in which it does (`ledger.core.decide`)."""
