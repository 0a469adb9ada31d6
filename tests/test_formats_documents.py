"""Text of other systems as nodes, fields and exact amounts."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.formats import documents, fields, names, quantities
from ledger.formats.documents import Node, NotTheFormat, read_documents
from ledger.formats.fields import Fields, Note
from schemas.asks import MigAsk


def plain(node: Node) -> Any:
    """Return a node's value without lines."""
    if isinstance(node.value, dict):
        return {name: plain(each) for name, each in node.value.items()}
    if isinstance(node.value, list):
        return [plain(each) for each in node.value]
    return node.value


def test_a_scalar_stays_the_text_that_was_written() -> None:
    """Nothing becomes a float, an octal number, a date or a truth value by its looks."""
    text = "[0.1, 010, 1:30, no, 2026-01-01, 1_000, 0x1F, 'null', null, ~, '']"

    (node,) = read_documents(text)

    written = ["0.1", "010", "1:30", "no", "2026-01-01", "1_000", "0x1F", "null", None, None, ""]
    assert written == plain(node)


def test_json_with_tabs_and_surrogate_pairs_is_read() -> None:
    """What Go or JavaScript writes as JSON is the same tree."""
    (node,) = read_documents('{\n\t"a":\t{"b": ["\\ud83d\\ude00", 1.5]}\n}')

    assert {"a": {"b": ["\U0001f600", "1.5"]}} == plain(node)


def test_a_node_knows_its_line() -> None:
    """Lines count from 1, over all documents of a text; an empty document is none."""
    found = read_documents("---\na: 1\n---\n---\nb:\n- x\n- y\n")

    assert [2, 5] == [node.line for node in found]
    items = Fields(found[1], "", []).take("b")
    assert items is not None
    assert isinstance(items.value, list)
    assert [6, 7] == [item.line for item in items.value]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    {
        "an alias": ("a: &x [1]\nb: *x\n", 2, "aliases"),
        "a name twice": ("a: 1\nb: 2\na: 3\n", 3, "'a' stands twice"),
        "a tag that makes an object": ("a: !!python/object:os.system x\n", 1, "the tag"),
        "a tag of one's own": ("a:\n  !mine x\n", 2, "the tag '!mine'"),
        "a name that is no text": ("? [a]\n: 1\n", 1, "must be text"),
        "no YAML": ("a: [1\nb: 2\n", 2, "not YAML"),
        "an escape beyond Unicode": ('a: "\\UFFFFFFFF"', 0, "not YAML"),
        "half a surrogate pair": ('a: 1\nb: "\\ud83d"', 2, "surrogate"),
        "a control character": ("a: \x00", 0, "not YAML"),
        "too deep": ("[" * 41 + "]" * 41, 1, "more than 40 levels"),
    }.values(),
)
def test_what_is_not_read_says_where(text: str, line: int, reason: str) -> None:
    """Each refusal has the line, and says what is wrong."""
    with pytest.raises(NotTheFormat) as error:
        read_documents(text)

    assert line == error.value.line
    assert reason in error.value.message


def test_an_alias_bomb_costs_nothing() -> None:
    """Nine lines that stand for a thousand million nodes end at the first alias."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, 9)]

    with pytest.raises(NotTheFormat, match="aliases") as error:
        read_documents("\n".join(lines))

    assert 2 == error.value.line


def test_size_depth_and_number_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a limit there is an error that names it; just below it the text is read."""
    monkeypatch.setattr(documents, "MAX_CHARS", 100)
    monkeypatch.setattr(documents, "MAX_NODES", 20)

    assert 14 == len(plain(read_documents("[" + "a," * 14 + "]")[0]))
    assert 1 == len(read_documents("a" * 100))
    with pytest.raises(NotTheFormat, match="more than 20 values"):
        read_documents("[" + "a," * 20 + "]")
    with pytest.raises(NotTheFormat, match="101 characters, more than 100"):
        read_documents("a" * 101)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever the text, there is no other exception."""
    try:
        found = read_documents(text)
    except NotTheFormat as error:
        assert error.message  # noqa: PT017 - the property is about the error
    else:
        assert all(node.line > 0 for node in found)


# -- fields -------------------------------------------------------------------------------


def taken(text: str) -> tuple[Fields, list[Note]]:
    """Return the fields of a text and the notes that they write to."""
    notes: list[Note] = []
    return Fields(read_documents(text)[0], "", notes), notes


def test_what_nobody_took_is_reported() -> None:
    """A field with a reason of its own has its own note and line; the others share one."""
    found, notes = taken("a: 1\nb: 2\nc: 3\nd: 4\n")

    assert 1 == found.whole("a")
    found.rest("are not read", {"c": "is special"})

    assert ["line 3: c: is special", "line 2: the document: b, d: are not read"] == [
        str(note) for note in notes
    ]


@pytest.mark.parametrize(
    ("kind", "text"),
    {
        "whole": ("whole", "x: 1.5"),
        "whole below least": ("whole", "x: -1"),
        "whole of far too many digits": ("whole", f"x: {'9' * 5000}"),
        "flag": ("flag", "x: maybe"),
        "text": ("text", "x: [a]"),
        "quantity": ("quantity", "x: 4 GB"),
        "negative quantity": ("quantity", "x: -1"),
        "quantity beyond any machine": ("quantity", "x: 9e99"),
        "fields": ("fields", "x: [a]"),
        "each": ("each", "x: [a]"),
        "texts": ("texts", "x: {a: b}"),
        "texts of lists": ("texts", "x: [[a]]"),
        "pairs": ("pairs", "x: {a: [b]}"),
        "needed": ("needed", "y: 1"),
        "needed and empty": ("needed", "x: ''"),
    }.values(),
)
def test_a_field_of_the_wrong_type_is_refused(kind: str, text: str) -> None:
    """The error names the field."""
    found, _ = taken(text)

    with pytest.raises(NotTheFormat) as error:
        getattr(found, kind)("x")

    assert error.value.path.startswith("x")


def test_an_absent_field_and_null_are_the_same() -> None:
    """Both give None, or nothing."""
    for text in ("y: 1", "x: null\ny: 1"):
        found, _ = taken(text)

        assert (None, None, None) == (found.text("x"), found.whole("x"), found.flag("x"))
        assert (None, [], {}) == (found.fields("x"), found.each("x"), found.pairs("x"))


# -- amounts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "amount"),
    {
        "500m": Fraction(1, 2),
        "0.1": Fraction(1, 10),
        "2": Fraction(2),
        "1Ki": Fraction(1024),
        "1.5Gi": Fraction(3 * 2**29),
        "1G": Fraction(10**9),
        "1E": Fraction(10**18),
        "1E2": Fraction(100),
        "1e-3": Fraction(1, 1000),
        "100n": Fraction(1, 10**7),
        ".5": Fraction(1, 2),
        "5.": Fraction(5),
        "-1": Fraction(-1),
    }.items(),
)
def test_kubernetes_quantities_by_hand(text: str, amount: Fraction) -> None:
    """As the resource model of Kubernetes defines them, exactly."""
    assert amount == quantities.kubernetes(text)


@pytest.mark.parametrize("text", ["", "1 Gi", "1KiB", "1K", "one", "1e999", "1e2Ki", "٣", "1\n"])
def test_what_is_no_quantity(text: str) -> None:
    """A wrong suffix, blanks, other digits and exponents without end are none."""
    assert quantities.kubernetes(text) is None


def test_rounding_is_up() -> None:
    """A demand never gets smaller (C15)."""
    assert [1, 1, 2, 0] == [
        quantities.up(Fraction(*each)) for each in ((1, 1000), (1, 1), (1001, 1000), (0, 1))
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    {
        "60": 3600,
        "10:30": 630,
        "1:00:00": 3600,
        "2-0": 172_800,
        "1-12": 129_600,
        "1-12:30": 131_400,
        "1-00:00:30": 86_430,
    }.items(),
)
def test_slurm_times_by_hand(text: str, seconds: int) -> None:
    """Minutes, m:s, h:m:s, d-h, d-h:m and d-h:m:s, as the manual of sbatch lists them."""
    assert seconds == quantities.slurm_seconds(text)


def test_slurm_sizes_by_hand() -> None:
    """Without a unit it is megabytes; kilobytes are rounded up."""
    given_ = ["4000", "16G", "1K", "1025K", "2T", "1gb", "x", "1.5G"]

    assert [4000, 16384, 1, 2, 2 * 1024**2, 1024, None, None] == [
        quantities.slurm_mib(text) for text in given_
    ]


def test_nomad_sizes_by_hand() -> None:
    """Units of base 2 and 10 are kept apart, and KB is kB."""
    given_ = ["1.5 GiB", "1500 MiB", "2 GB", "1KB", "1 kB", "2", "2 GHz"]

    assert [3 * 2**29, 1500 * 2**20, 2 * 10**9, 1000, 1000, None, None] == [
        quantities.nomad_bytes(text) for text in given_
    ]


# -- names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "profile"),
    {
        "nvidia.com/mig-1g.10gb": "1g.10gb",
        "nvidia.com/mig-1g.10gb.me": "1g.10gb+me",
        "nvidia.com/mig-1g.24gb.me.all": "1g.24gb+me.all",
        "nvidia.com/mig-1g.10gb.shared": None,
        "nvidia.com/gpu": None,
        "amd.com/mig-1g.10gb": None,
    }.items(),
)
def test_resource_names_of_slices(resource: str, profile: str | None) -> None:
    """The plus of a profile is a dot in a resource's name, and back."""
    assert profile == names.profile_of(resource)
    if profile is not None:
        assert resource == names.resource_of(profile)
        assert profile == MigAsk(mode="mig", profile=profile).profile


@pytest.mark.parametrize(
    ("label", "product"),
    {
        "NVIDIA-H100-80GB-HBM3": names.Product("NVIDIA H100 80GB HBM3"),
        "NVIDIA-A100-SXM4-40GB": names.Product("NVIDIA A100-SXM4-40GB"),
        "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb": names.Product("NVIDIA A100-SXM4-40GB", "1g.5gb"),
        "Tesla-T4-SHARED": names.Product("Tesla T4", None, shared=True),
        "Some-New-GPU": names.Product("Some-New-GPU", known=False),
    }.items(),
)
def test_product_labels(label: str, product: names.Product) -> None:
    """Only a list of models tells which hyphen was a blank."""
    assert product == names.product_of(label)


def test_a_slurm_type_is_a_part_of_a_models_name() -> None:
    """A whole word goes before a part of one, and what fits nothing is nothing."""
    assert {"NVIDIA A10"} == set(names.models_like("a10"))
    assert {"NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"} == set(names.models_like("a100_sxm4"))
    assert "NVIDIA H200" in names.models_like("h200")
    assert [] == names.models_like("mi300")
    assert ["AMD MI300X"] == names.models_like("mi300", ["AMD MI300X"])


@pytest.mark.parametrize(
    ("profile", "milli"),
    {"1g.10gb": 143, "2g.20gb": 286, "3g.40gb": 429, "4g.40gb": 572, "7g.80gb": 1000}.items(),
)
def test_a_slices_part_of_a_device_is_rounded_up(profile: str, milli: int) -> None:
    """By compute slices of seven; 1c.2g.10gb counts its one."""
    assert milli == names.part_milli(profile)
    assert 143 == names.part_milli("1c.2g.10gb")


@given(st.text(max_size=80))
def test_names_fit_both_sides(text: str) -> None:
    """What is called a name is one for the ledger, and what is written is one for Kubernetes."""
    found = names.dns_name(text)

    assert found is None or (names.is_name(found) and found == found.lower())
    assert not names.is_name(text + "\n")
    assert fields.joined("", text).isprintable()
