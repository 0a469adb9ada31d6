"""The pure core: state, events, decisions. No clock, no chance, no I/O."""
