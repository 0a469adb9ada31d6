"""The agent of one node with GPUs: orders in, observations out, a journal between."""
