"""The Kubernetes objects of a text, those inside lists too."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ledger.formats.documents import read_documents
from ledger.formats.fields import Fields, Note

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["read_manifests"]


def read_manifests(text: str, notes: list[Note]) -> Iterator[tuple[str, str, Fields]]:
    """Yield kind, API version and the other fields of each object, in the text's order.

    ``kubectl get`` wraps objects in a List; it is opened.
    """
    pending = deque((node, f"documents[{at}]") for at, node in enumerate(read_documents(text)))
    while pending:
        node, path = pending.popleft()
        fields = Fields(node, path, notes)
        kind, api = fields.text("kind") or "", fields.text("apiVersion") or ""
        if not (kind.endswith("List") and fields.has("items")):
            yield kind, api, fields
            continue
        items = fields.take("items")
        inner = items.value if items is not None and isinstance(items.value, list) else []
        around = [(item, f"{path}.items[{at}]") for at, item in enumerate(inner)]
        pending.extendleft(reversed(around))
