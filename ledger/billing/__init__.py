"""The bill: what metering counted, at the prices of a book, as FOCUS cost and usage rows."""
