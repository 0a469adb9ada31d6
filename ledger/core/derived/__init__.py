"""What is computed from the state and kept beside it."""
