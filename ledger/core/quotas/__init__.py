"""Who may hold how much, and who had how much lately."""
