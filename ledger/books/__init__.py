"""The books: metering and the bill a second time, in sets, from the archive's typed columns.

`ledger.metering` follows the log record by record through the state; these books are made by
a database from the columns of events alone, share no code with it and say the same to the
microsecond and the nano. So each is the proof of the other, and a log of ten million events
is audited in seconds.
"""
