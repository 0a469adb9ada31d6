"""Where a need could be met, and how it is given."""
