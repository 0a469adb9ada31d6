"""What is promised ahead: reservations, plans, places kept."""
