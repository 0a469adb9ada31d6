"""Signed notes as C2SP signed-note defines them: a text, and Ed25519 signatures below it.

A key has a name; key and name give the id by which a signature is found. Keys are
written as Go's note package and its kin write them, one line each: ``NAME+ID+KEY``,
and ``PRIVATE+KEY+NAME+ID+KEY`` for the one that signs.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass, field, replace

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

__all__ = ["BadKey", "BadNote", "PrivateKey", "PublicKey", "open_note", "sign_note"]
__all__ += ["split_note"]

_ED25519 = b"\x01"
_KEY_BYTES = 32
_ID_BYTES = 4
_PRIVATE = "PRIVATE+KEY+"
_DASH = "\N{EM DASH} "
#: The longest note that is looked at, in bytes; a checkpoint has a few hundred.
_MAX_BYTES = 65_536


class BadKey(ValueError):
    """A key is not in the form of one; nothing of it is in the message."""


class BadNote(ValueError):
    """A note is not in the form of one, or no signature of the given key is on it."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that verifies. ``raw`` has 32 bytes."""

    name: str
    raw: bytes

    def __post_init__(self) -> None:
        """Raise `BadKey` for a name that cannot stand in a signature's line."""
        if not self.name or "+" in self.name or any(map(_unfit, self.name)):
            raise BadKey(f"{self.name!r} is no key name: it has no spaces, no plus, and no end")

    @property
    def id(self) -> bytes:
        """Return the key's id: four bytes of a hash over its name and the key."""
        given = self.name.encode() + b"\n" + _ED25519 + self.raw
        return hashlib.sha256(given).digest()[:_ID_BYTES]

    def named(self, name: str) -> PublicKey:
        """Return the same key under another name, and so with another id."""
        return replace(self, name=name)

    def __str__(self) -> str:
        """Return the key as one line."""
        return f"{self.name}+{self.id.hex()}+{_base64(_ED25519 + self.raw)}"

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Read ``NAME+ID+KEY``; raise `BadKey`."""
        text = text.strip()
        if text.startswith(_PRIVATE):
            raise BadKey("this is the key that signs; to verify, give the one in the .pub file")
        name, raw, found = _parts(text)
        key = cls(name, raw)
        if key.id != found:
            raise BadKey(f"the key's id is {found.hex()}, but name and key give {key.id.hex()}")
        return key


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """A key that signs. ``seed`` has 32 bytes and is never shown."""

    name: str
    seed: bytes = field(repr=False)

    @classmethod
    def make(cls, name: str) -> PrivateKey:
        """Return a new key, from the system's randomness."""
        return cls(name, Ed25519PrivateKey.generate().private_bytes_raw())

    @property
    def public(self) -> PublicKey:
        """Return the key that verifies what this one signs."""
        signer = Ed25519PrivateKey.from_private_bytes(self.seed)
        return PublicKey(self.name, signer.public_key().public_bytes_raw())

    def secret(self) -> str:
        """Return the key as one line, to be kept where nobody else reads it."""
        return f"{_PRIVATE}{self.name}+{self.public.id.hex()}+{_base64(_ED25519 + self.seed)}"

    @classmethod
    def parse(cls, text: str) -> PrivateKey:
        """Read ``PRIVATE+KEY+NAME+ID+KEY``; raise `BadKey`."""
        text = text.strip()
        if not text.startswith(_PRIVATE):
            raise BadKey("this is no key that signs: it does not begin with PRIVATE+KEY+")
        name, seed, found = _parts(text.removeprefix(_PRIVATE))
        key = cls(name, seed)
        if key.public.id != found:
            raise BadKey("the key's id is not the one that name and key give")
        return key


def sign_note(text: str, key: PrivateKey, name: str) -> bytes:
    """Return the note: ``text``, which ends a line, signed by ``key`` under ``name``."""
    assert text.endswith("\n")
    signature = Ed25519PrivateKey.from_private_bytes(key.seed).sign(text.encode())
    line = f"{_DASH}{name} {_base64(key.public.named(name).id + signature)}\n"
    return f"{text}\n{line}".encode()


def open_note(note: bytes, key: PublicKey) -> str:
    """Return the text of a note that ``key`` has signed; raise `BadNote`.

    Signatures of others are passed over, so that witnesses may add theirs.
    """
    text, lines = split_note(note)
    verifier = Ed25519PublicKey.from_public_bytes(key.raw)
    signed = False
    for name, data in lines:
        if name != key.name or data[:_ID_BYTES] != key.id:
            continue
        try:
            verifier.verify(data[_ID_BYTES:], text.encode())
        except InvalidSignature:
            raise BadNote(f"the signature of {name} is not that of this text") from None
        signed = True
    if not signed:
        raise BadNote(f"no signature of the key {key.name}+{key.id.hex()} is on it")
    return text


def split_note(note: bytes) -> tuple[str, list[tuple[str, bytes]]]:
    """Return the text, not to be trusted yet, and the signatures: name, and id with signature."""
    if len(note) > _MAX_BYTES:
        raise BadNote(f"it has {len(note)} bytes; no note has more than {_MAX_BYTES}")
    try:
        whole = note.decode()
    except UnicodeDecodeError:
        raise BadNote("it is not UTF-8") from None
    if any(one < " " and one != "\n" for one in whole):
        raise BadNote("it has control characters")
    text, blank, below = whole.rpartition("\n\n")
    if not blank or not below.endswith("\n"):
        raise BadNote("it has no signatures below an empty line")
    lines = []
    for line in below.splitlines():
        name, space, encoded = line.removeprefix(_DASH).partition(" ")
        data = _from_base64(encoded)
        if not line.startswith(_DASH) or not space or data is None or len(data) <= _ID_BYTES:
            raise BadNote(f"{line[:80]!r} is no line of a signature")
        lines.append((name, data))
    return text + "\n", lines


def _parts(text: str) -> tuple[str, bytes, bytes]:
    """Return name, 32 bytes of a key, and the id that stands between them."""
    name, _, rest = text.partition("+")
    found, _, encoded = rest.partition("+")
    data = _from_base64(encoded)
    if data is None or data[:1] != _ED25519 or len(data) != 1 + _KEY_BYTES:
        raise BadKey("this is no Ed25519 key as NAME+ID+KEY on one line")
    try:
        return name, data[1:], bytes.fromhex(found)
    except ValueError:
        raise BadKey("the key's id is not hexadecimal") from None


def _unfit(character: str) -> bool:
    return character.isspace() or not character.isprintable()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
