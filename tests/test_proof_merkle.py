"""The tree, its proofs, leaves, notes and checkpoints: pure, against vectors and a plain tree."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledger.log.port import Record
from ledger.proof import merkle
from ledger.proof.checkpoint import Checkpoint, open_checkpoint, origin_of, sign_checkpoint
from ledger.proof.leaf import GENESIS, leaf_bytes, link, read_leaf, record_hash
from ledger.proof.note import BadKey, BadNote, PrivateKey, PublicKey, open_note, sign_note
from ledger.proof.tiles import WIDTH, Edge, SignedTiles, TileFault, edge_tiles
from tests.proofs import KEY, OTHER_KEY, tree_root

#: The leaves and roots of the reference implementation of RFC 6962.
LEAVES = [
    bytes.fromhex(one)
    for one in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
#: (leaf, size) and (first, second) to the proofs of the same implementation.
PATHS = {
    (0, 8): [
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ],
    (2, 3): ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"],
}
CONSISTENT = {
    (1, 1): [],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ],
}
#: 0, 1, and 2^n - 1, 2^n, 2^n + 1, past the first level of tiles.
SIZES = sorted({0, 1, *(max(0, 2**n + d) for n in range(11) for d in (-1, 0, 1))})
sizes = st.one_of(st.sampled_from(SIZES), st.integers(0, 1200))


def leaves(count: int) -> list[bytes]:
    """Return different leaves."""
    return [b"leaf %d" % number for number in range(count)]


class Kept:
    """A tree in tiles, as a store would have them."""

    def __init__(self, data: list[bytes]) -> None:
        self.edge = Edge()
        self.tiles: dict[tuple[int, int], list[bytes]] = {}
        for one in data:
            self.tiles.update(
                {(level, at): row for level, at, row in self.edge.append(merkle.leaf_hash(one))}
            )
        self.tiles.update({(level, at): list(row) for level, at, row in self.edge.tiles()})

    def load(self, level: int, index: int, width: int) -> list[bytes] | None:
        """Return a tile's first hashes."""
        found = self.tiles.get((level, index))
        return None if found is None else found[:width]

    def signed(self, size: int, root: bytes) -> SignedTiles:
        """Return the tiles under a root."""
        return SignedTiles(size, root, self.load)


@pytest.mark.parametrize("size", range(9))
def test_roots_of_the_reference(size: int) -> None:
    """The roots over the first leaves are those of the reference implementation."""
    assert ROOTS[size] == tree_root(LEAVES[:size]).hex()
    assert ROOTS[size] == Kept(LEAVES[:size]).edge.root().hex()


def test_proofs_of_the_reference() -> None:
    """So are the inclusion and consistency proofs."""
    tiles = Kept(LEAVES)
    for (leaf, size), path in PATHS.items():
        tree = tiles.signed(8, bytes.fromhex(ROOTS[8])).subtree
        assert path == [one.hex() for one in merkle.inclusion_proof(leaf, size, tree)]
    for (first, second), proof in CONSISTENT.items():
        tree = tiles.signed(8, bytes.fromhex(ROOTS[8])).subtree
        assert proof == [one.hex() for one in merkle.consistency_proof(first, second, tree)]


@given(sizes)
@example(256)
@example(65_536 + 1)
def test_a_tree_that_grows_has_the_root_of_its_leaves(size: int) -> None:
    """Leaf by leaf in tiles, the root is the one that the definition gives; so is the edge's."""
    kept = Kept(leaves(size))
    assert tree_root(leaves(size)) == kept.edge.root()
    tiles = kept.signed(size, kept.edge.root())
    again = Edge.of(size, tiles.tile)
    assert kept.edge.root() == again.root()
    again.append(merkle.leaf_hash(b"next"))
    assert tree_root([*leaves(size), b"next"]) == again.root()
    assert sorted((level, at, len(row)) for (level, at), row in kept.tiles.items()) == sorted(
        (level, at, min(WIDTH, (size >> 8 * level) - at * WIDTH))
        for level in range(4)
        for at in range(-(-(size >> 8 * level) // WIDTH))
    )


def test_the_tiles_of_the_specification() -> None:
    """C2SP tlog-tiles: 70,000 leaves have these tiles at the edge; 256 have one above."""
    assert [(0, 273, 112), (1, 1, 17), (2, 0, 1)] == list(edge_tiles(70_000))
    assert [(1, 0, 1)] == list(edge_tiles(256))
    assert [] == list(edge_tiles(0))


@given(st.data(), sizes.filter(bool))
def test_every_leaf_has_a_proof_and_no_other_has_it(data: st.DataObject, size: int) -> None:
    """U3: the proof of a leaf verifies; with anything about it changed it does not."""
    index = data.draw(st.integers(0, size - 1))
    kept = Kept(leaves(size))
    root = kept.edge.root()
    proof = merkle.inclusion_proof(index, size, kept.signed(size, root).subtree)
    leaf = merkle.leaf_hash(leaves(size)[index])
    assert merkle.verify_inclusion(leaf, index, size, proof, root)
    assert not merkle.verify_inclusion(merkle.leaf_hash(b"x"), index, size, proof, root)
    assert not merkle.verify_inclusion(leaf, index, size, [*proof, root], root)
    assert not merkle.verify_inclusion(leaf, index, size, proof, bytes(32))
    assert not merkle.verify_inclusion(leaf, size, size, proof, root)
    if size > 1:
        other = data.draw(st.integers(0, size - 1).filter(lambda one: one != index))
        assert not merkle.verify_inclusion(leaf, other, size, proof, root)
        assert not merkle.verify_inclusion(leaf, index, size, proof[:-1], root)
        at = data.draw(st.integers(0, len(proof) - 1))
        bad = [bytes(32) if place == at else one for place, one in enumerate(proof)]
        assert not merkle.verify_inclusion(leaf, index, size, bad, root)


@given(st.data(), sizes)
def test_a_tree_begins_every_later_one_and_no_other(data: st.DataObject, second: int) -> None:
    """U2: from every earlier size there is a proof; a changed history has none."""
    first = data.draw(st.integers(0, second)) if second else 0
    kept = Kept(leaves(second))
    root, old = kept.edge.root(), tree_root(leaves(first))
    proof = merkle.consistency_proof(first, second, kept.signed(second, root).subtree)
    assert merkle.verify_consistency(first, second, old, root, proof)
    assert not merkle.verify_consistency(first, second, old, root, [*proof, root])
    assert not merkle.verify_consistency(first, second, bytes(32), root, proof)
    if 0 < first < second:
        assert not merkle.verify_consistency(first, second, old, bytes(32), proof)
        assert not merkle.verify_consistency(first, second, old, root, proof[:-1])
        assert not merkle.verify_consistency(second, first, root, old, proof)
        changed = leaves(first)
        changed[data.draw(st.integers(0, first - 1))] = b"another"
        assert not merkle.verify_consistency(first, second, tree_root(changed), root, proof)


def test_what_is_not_in_a_tree_has_no_proof() -> None:
    """Asking for it is a mistake of the programmer, and said."""
    tree = Kept(leaves(3)).edge._subtree
    with pytest.raises(ValueError, match="leaf 3 is not in a tree of 3"):
        merkle.inclusion_proof(3, 3, tree)
    with pytest.raises(ValueError, match="cannot begin"):
        merkle.consistency_proof(4, 3, tree)


@given(st.data(), st.sampled_from([1, 5, 256, 300, 513, 1000]))
def test_a_tile_is_believed_only_under_the_root(data: st.DataObject, size: int) -> None:
    """One changed hash anywhere in the tiles is refused where it is read, and nothing else is."""
    kept = Kept(leaves(size))
    root = kept.edge.root()
    level, index = data.draw(st.sampled_from(sorted(kept.tiles)))
    row = list(kept.tiles[level, index])
    row[data.draw(st.integers(0, len(row) - 1))] = bytes(32)
    kept.tiles[level, index] = row
    if (level, index) in [(one, at) for one, at, _ in edge_tiles(size)]:
        with pytest.raises(TileFault):
            kept.signed(size, root)
        return
    tiles = kept.signed(size, root)
    with pytest.raises(TileFault) as fault:
        tiles.tile(level, index)
    assert (index * WIDTH, index * WIDTH + WIDTH - 1) == (fault.value.first, fault.value.last)
    for other, at in kept.tiles:
        if (other, at) != (level, index):
            assert kept.tiles[other, at] == list(tiles.tile(other, at))


records = st.builds(
    Record,
    st.just("t"),
    st.just(0),
    st.integers(0, 2**63 - 1),
    st.just(0),
    st.none() | st.binary(max_size=9),
    st.none() | st.binary(max_size=9),
    st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=3).map(tuple),
)


@given(records)
def test_a_leaf_says_all_of_a_record(record: Record) -> None:
    """The record is read back from its leaf: so no two have the same one."""
    assert record == read_leaf(leaf_bytes(record), "t", 0)
    assert leaf_bytes(record._replace(offset=5)) == leaf_bytes(record, 5)


@pytest.mark.parametrize("cut", range(1, 30, 4))
def test_half_a_leaf_is_none(cut: int) -> None:
    """What is cut off, or has something behind it, is refused."""
    whole = leaf_bytes(Record("t", 0, 1, 0, b"k", b"value", (("n", b"v"),)))
    for bad in (whole[:-cut], whole + bytes(cut)):
        with pytest.raises(ValueError, match=r"ends too early|version 1"):
            read_leaf(bad, "t", 0)


def test_the_bytes_of_a_leaf_and_of_the_chain_stay() -> None:
    """What was signed once must hash to the same for ever: golden values, never edited."""
    record = Record("t", 0, 7, 123, b"cell", b'{"v":1}', (("ce_id", b"x"),))
    wanted = (
        "010000000000000007" "010000000463656c6c" "01000000077b2276223a317d"
        "00000001" "0000000563655f6964" "0000000178"
    )  # fmt: skip
    assert wanted == leaf_bytes(record).hex()
    assert record_hash(record) == hashlib.sha256(b"\x00" + bytes.fromhex(wanted)).digest()
    assert GENESIS == hashlib.sha256(b"gpuledger chain v1").digest()
    head = link(GENESIS, record_hash(record))
    assert head == hashlib.sha256(b"\x02" + GENESIS + record_hash(record)).digest()
    assert record_hash(record) == record_hash(record._replace(time_us=9)), "not the append time"


# The example of Go's golang.org/x/mod/sumdb/note, which C2SP signed-note describes.
GO_PUBLIC = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_PRIVATE = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
GO_TEXT = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
)
GO_SIGNATURE = (
    "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="
)


def test_a_note_is_the_one_that_others_write() -> None:
    """Keys, ids and signatures are those of the Go package, to the byte."""
    private, public = PrivateKey.parse(GO_PRIVATE), PublicKey.parse(GO_PUBLIC)
    note = f"{GO_TEXT}\n— PeterNeumann {GO_SIGNATURE}\n".encode()
    assert (GO_PUBLIC, GO_PRIVATE) == (str(public), private.secret())
    assert public == private.public
    assert note == sign_note(GO_TEXT, private, "PeterNeumann")
    assert GO_TEXT == open_note(note, public)
    assert "seed" not in repr(private)


def test_signatures_of_others_are_passed_over() -> None:
    """A witness may add its own line, above or below; ours still counts, and only ours."""
    note = f"{GO_TEXT}\n— PeterNeumann {GO_SIGNATURE}\n".encode()
    other = f"— witness.example/w {base64.b64encode(bytes(76)).decode()}\n".encode()
    public = PublicKey.parse(GO_PUBLIC)
    assert GO_TEXT == open_note(note + other, public)
    with pytest.raises(BadNote, match="no signature of the key"):
        open_note(f"{GO_TEXT}\n".encode() + other, public)


CHECKPOINT = Checkpoint(origin_of(KEY.name, "p.events", 3), 17, bytes(32), 1234, b"\x01" * 32)


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    """Origin, size, root, time and chain; by the site's key, or by the one of its origin."""
    note = sign_checkpoint(CHECKPOINT, KEY)
    assert note.startswith(
        b"example.org/site/p.events/3\n17\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
        b"time_us 1234\nchain AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n\n"
        b"\xe2\x80\x94 example.org/site/p.events/3 "
    )
    assert CHECKPOINT == open_checkpoint(note, KEY.public)
    assert CHECKPOINT == open_checkpoint(note, KEY.public.named(CHECKPOINT.origin))
    assert ("p.events", 3) == (CHECKPOINT.topic, CHECKPOINT.partition)


def test_every_changed_byte_of_a_checkpoint_is_refused() -> None:
    """Any byte of it, text or signature, changed in any of its bits."""
    note = sign_checkpoint(CHECKPOINT, KEY)
    for at in range(len(note)):
        bad = bytearray(note)
        bad[at] ^= 1 << at % 8
        with pytest.raises(BadNote):
            open_checkpoint(bytes(bad), KEY.public)


BAD_NOTES = {
    "nothing": b"",
    "no signature": CHECKPOINT.text.encode(),
    "another key": sign_checkpoint(CHECKPOINT, OTHER_KEY),
    "another site's": sign_checkpoint(replace(CHECKPOINT, origin="a.b/p.events/3"), KEY),
    "not UTF-8": b"\xff\n\n",
    "a tab": b"a\tb\n\n",
    "too long": b"a" * 70_000,
    "signed, but no checkpoint": sign_note(
        "example.org/site/x/1\n1\n", KEY, "example.org/site/x/1"
    ),
    "a size with leading zeros": sign_note(
        CHECKPOINT.text.replace("\n17\n", "\n017\n"), KEY, CHECKPOINT.origin
    ),
    "a root that is too short": sign_note(
        CHECKPOINT.text.replace("AAAA=", "AAA="), KEY, CHECKPOINT.origin
    ),
}


@pytest.mark.parametrize("note", BAD_NOTES.values(), ids=BAD_NOTES.keys())
def test_what_is_no_checkpoint_of_ours_is_refused(note: bytes) -> None:
    """Nothing that the key has not signed, and nothing else that it has, is one."""
    with pytest.raises(BadNote):
        open_checkpoint(note, KEY.public)


BAD_KEYS = {
    "empty": "",
    "words": "no key",
    "private": GO_PRIVATE,
    "another id": GO_PUBLIC.replace("c74f20a3", "c74f20a4"),
    "no hex": GO_PUBLIC.replace("c74f20a3", "c74f20ax"),
    "another kind": GO_PUBLIC.replace("+ARpc", "+BRpc"),
    "a space": GO_PUBLIC.replace("Peter", "Peter "),
    "too short": GO_PUBLIC[:-4],
}


@pytest.mark.parametrize("text", BAD_KEYS.values(), ids=BAD_KEYS.keys())
def test_what_is_no_key_is_refused_without_showing_it(text: str) -> None:
    """The message of a refusal never holds a secret."""
    with pytest.raises(BadKey) as refused:
        PublicKey.parse(text)
    assert GO_PRIVATE[-44:] not in str(refused.value)
    with pytest.raises(BadKey):
        PrivateKey.parse(GO_PUBLIC)
