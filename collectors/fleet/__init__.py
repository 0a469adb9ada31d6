"""Simulated machines that run the real agent, and what goes wrong on them."""
