"""Limits and versions by themselves: who only reads a log needs none of the models."""

from __future__ import annotations

__all__ = ["MAX_LISTED_TEXT", "MAX_TEXT", "RECORD_VERSION"]

#: How many characters one line of text may have.
MAX_TEXT = 600

#: How many a list of names takes of it at most: something may stand before and behind it.
MAX_LISTED_TEXT = 500

#: The version of records that this code writes. Older ones are upcast, newer ones stop the reader.
RECORD_VERSION = 1
