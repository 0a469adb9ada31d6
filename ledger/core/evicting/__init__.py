"""Whose lease ends for whom."""
