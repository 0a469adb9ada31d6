"""Proof that a log is the one that was signed: chain, Merkle tree, checkpoints (docs/proof.md)."""
