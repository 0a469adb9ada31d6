"""The part of HCL in which job files are plain: blocks, and attributes that are literals.

What has to be worked out (variables, functions, conditions, heredocs) is skipped and
remembered by name only, so that it is an error just where the field is needed. For such
files ``nomad job run -output`` prints the job as JSON.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field

from ledger.formats.documents import MAX_CHARS, MAX_DEPTH, Node, NotTheFormat, shown

__all__ = ["Block", "read_hcl"]

_SKIP = re.compile(r"(?:[ \t\r\n\ufeff]|#[^\n]*|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_INLINE = re.compile(r"(?:[ \t\r]|/\*.*?\*/)*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_ATTRIBUTE = re.compile(r"=(?!=)")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*+)"')
_HEREDOC = re.compile(r"<<-?([A-Za-z_][A-Za-z0-9_-]*)[ \t\r]*\n")
_AFTER = re.compile(r"(?:[ \t\r]|/\*.*?\*/)*(?:\n|\}|#|//|$)", re.DOTALL)
_ESCAPE = re.compile(r'\\([nrt"\\])')
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(slots=True)
class Block:
    """A block: its kind and labels, its attributes by name, and the blocks in it.

    ``skipped`` are the attributes that are not literals, with their lines.
    """

    kind: str
    labels: list[str]
    line: int
    attributes: dict[str, Node] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)


def read_hcl(text: str) -> Block:
    """Return the file as one block without a kind; raise `NotTheFormat` for what is no HCL."""
    if len(text) > MAX_CHARS:
        raise NotTheFormat(f"the text has {len(text)} characters, more than {MAX_CHARS}; split it")
    reader = _Reader(text)
    root = Block("", [], 1)
    reader.body(root, 0)
    return root


class _Reader:
    """A place in the text, moved on by what is read there."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.breaks = [match.start() for match in re.finditer("\n", text)]

    def line(self) -> int:
        return bisect_right(self.breaks, self.at - 1) + 1

    def wrong(self, message: str) -> NotTheFormat:
        advice = "; nomad job run -output prints the job as JSON, which is read whole"
        return NotTheFormat(f"not the HCL that is read here: {message}{advice}", line=self.line())

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def sees(self, character: str) -> bool:
        """Move past the character if it is the next one, and say whether it was."""
        found = self.text.startswith(character, self.at)
        self.at += len(character) * found
        return found

    def body(self, block: Block, depth: int) -> None:
        """Read into the block up to its closing brace, or to the end of the text."""
        if depth > MAX_DEPTH:
            raise self.wrong(f"nested more than {MAX_DEPTH} levels deep")
        while True:
            self.match(_SKIP)
            if self.at >= len(self.text):
                if depth:
                    raise self.wrong(f"the block {shown(block.kind)} is not closed")
                return
            if depth and self.sees("}"):
                return
            line = self.line()
            word = self.match(_WORD)
            if word is None:
                raise self.wrong(f"{shown(self.text[self.at : self.at + 10])} is no name")
            self.match(_INLINE)
            if self.match(_ATTRIBUTE):
                self._attribute(block, word[0], line, depth)
            else:
                inner = Block(word[0], self._labels(), line)
                self.body(inner, depth + 1)
                block.blocks.append(inner)

    def _labels(self) -> list[str]:
        found = []
        while not self.sees("{"):
            label = self.match(_STRING) or self.match(_WORD)
            if label is None:
                raise self.wrong("a name is followed by = or by labels and {")
            found.append(_unescaped(label[1] if label.re is _STRING else label[0]))
            self.match(_INLINE)
        return found

    def _attribute(self, block: Block, name: str, line: int, depth: int) -> None:
        if name in block.attributes or name in block.skipped:
            raise self.wrong(f"{shown(name)} stands twice in one block")
        self.match(_INLINE)
        start = self.at
        value = self._literal(depth)
        if value is not None and _AFTER.match(self.text, self.at):
            block.attributes[name] = value
        else:
            self.at = start
            self._skip_expression()
            block.skipped[name] = line

    def _literal(self, depth: int) -> Node | None:
        """Read a literal; None for anything else, wherever that leaves the place."""
        line = self.line()
        if depth > MAX_DEPTH:
            raise self.wrong(f"nested more than {MAX_DEPTH} levels deep")
        string = self.match(_STRING)
        if string is not None:
            return Node(_unescaped(string[1]), line)
        number = self.match(_NUMBER)
        if number is not None:
            return Node(number[0], line)
        if self.sees("["):
            return self._list(line, depth)
        word = self.match(_WORD)
        if word is not None and word[0] in ("true", "false", "null"):
            return Node(None if word[0] == "null" else word[0], line)
        return None

    def _list(self, line: int, depth: int) -> Node | None:
        items: list[Node] = []
        while True:
            self.match(_SKIP)
            if self.sees("]"):
                return Node(items, line)
            item = self._literal(depth + 1)
            self.match(_SKIP)
            if item is None or not (self.sees(",") or self.text.startswith("]", self.at)):
                return None
            items.append(item)

    def _skip_expression(self) -> None:
        """Go to the end of the expression: the end of the line outside all brackets."""
        open_: list[str] = []
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == '"' and self.match(_STRING):
                continue
            heredoc = self.match(_HEREDOC)
            if heredoc is not None:
                self._skip_heredoc(heredoc[1])
            elif open_ and character == open_[-1]:
                open_.pop()
                self.at += 1
            elif not open_ and character in "\n}":
                return
            else:
                if character in _CLOSING:
                    open_.append(_CLOSING[character])
                self.at += 1
        if open_:
            raise self.wrong("an expression is not closed")

    def _skip_heredoc(self, marker: str) -> None:
        end = re.compile(rf"^[ \t]*{re.escape(marker)}[ \t\r]*$", re.MULTILINE)
        found = end.search(self.text, self.at)
        if found is None:
            raise self.wrong(f"the text up to {shown(marker)} is not closed")
        self.at = found.end()


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES[found[1]], text)
