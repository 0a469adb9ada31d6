"""``python -m ledger.cli`` is the command, where it is not installed."""

from ledger.cli import main

main()
