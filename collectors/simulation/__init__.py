"""A ledger in virtual time: a month of a cluster's life in seconds, on the real parts."""
