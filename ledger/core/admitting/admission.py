"""What a submission asks once it is known who asks and what the cell's rules add to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.admitting.compatibility import compatible
from ledger.core.admitting.licences import never_licensed
from ledger.core.placing.constraints import for_tenant
from ledger.core.placing.vgpu import with_vgpu_type

if TYPE_CHECKING:
    from ledger.core.decisions.turn import Answer
    from ledger.core.state import Need, State
    from schemas.requests import RequestSubmit

__all__ = ["admitted"]


def admitted(state: State, asked: RequestSubmit, need: Need) -> tuple[Need, Answer | None]:
    """Return the need as it is kept, and why it can never be met; the first in order of codes."""
    if state.pools_limited:
        need = for_tenant(state, need, asked.tenant)
    if need.terms is None and asked.runtime is None:
        return need, None
    typed = with_vgpu_type(state, need)
    need, compared = compatible(state, asked, typed or need)
    refusal = never_licensed(state, need)
    if refusal is None and typed is None and need.terms is not None:
        refusal = ("unknown_vgpu_type", {"vgpu_type": need.terms.vgpu_type})
    if refusal is None and compared is not None:
        refusal = ("incompatible", compared)
    return need, refusal
