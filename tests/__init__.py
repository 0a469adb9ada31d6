"""The tests; `CONTRIBUTING.md` says how to run them."""
