"""A seeded simulation: everybody at once, for thousands of steps, under the clerk's eyes.

``python -m tests.simulation --seeds 1000 --steps 2000 --workers 2``
"""
