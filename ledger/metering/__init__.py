"""Metering: who had how much of every device, to the microsecond, from the log alone."""
