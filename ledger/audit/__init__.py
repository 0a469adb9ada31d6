"""Questions of an auditor: SQL over the ledger, in a database that can touch nothing else."""
