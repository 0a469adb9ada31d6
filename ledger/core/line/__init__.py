"""Who waits, who is next, and when."""
