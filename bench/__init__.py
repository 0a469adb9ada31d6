"""Benchmarks: commands that print one JSON object a line, each with its workload."""
