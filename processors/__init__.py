"""Workers: what feeds the ledger its inputs, on Kafka or on one machine."""
