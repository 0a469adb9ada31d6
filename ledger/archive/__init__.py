"""The log in files: written as it grows, made fewer, checked, and made a log again.

The modules, from the inside: `disk` (the steps that change a folder), `columns` (a
record as a row), `files` (one file), `folder` (what the names say), `follow`,
`compact`, `check`, `restore`. `ledger.log.archive` reads a folder as a log.
"""
