"""The names that servers' own builds of FlashAttention-3 add to its functions: vLLM's and SGLang's.

They are taken by keyword and stay out of the signatures, which clients read. What has the meaning of one of upstream's
arguments becomes that one; what is not served must have the value that asks for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor

from rocflash.dropin import InvalidArgument, Unsupported, check_tensor

# Their name, and ours where a function has it.
_SYNONYMS = {"sinks": "s_aux", "q_v": "qv", "block_table": "page_table"}
# Names that ask for something not served, unless they have one of these values.
_NOTHING = {
    "alibi_slopes": (None,),
    "aux_tensors": (None,),
    "cp_rank": (0,),
    "cp_tot_seqused_k": (None,),
    "cp_world_size": (1,),
    "dynamic_causal": (None, False),
    "mask_mod": (None,),
}
# Which of upstream's generations should compute: there is one library, and results do not differ.
_VERSIONS = (None, 2, 3, 4)


@dataclass
class Extra:
    """What a call said beyond upstream's arguments."""

    s_aux: Optional[Tensor] = None
    qv: Optional[Tensor] = None
    page_table: Optional[Tensor] = None
    out: Optional[Tensor] = None
    scheduler_metadata: Optional[Tensor] = None
    only_qv: bool = False
    return_softmax_lse: bool = False


def read(function: str, given: dict[str, Any], **own: Optional[Tensor]) -> Extra:
    """The meaning of `given`; `own` are those of upstream's arguments that the function has itself."""
    found = Extra(**own)
    for name, x in given.items():
        if name in _NOTHING:
            if isinstance(x, Tensor) or x not in _NOTHING[name]:
                raise Unsupported(
                    f"{name}: is given; it is not served here and must be {_NOTHING[name][0]}"
                )
        elif name == "fa_version":
            if x not in _VERSIONS:
                raise InvalidArgument(f"fa_version: {x!r}; it must be 2, 3, 4 or None")
        elif name in _SYNONYMS:
            mine = _SYNONYMS[name]
            if x is not None and own.get(mine) is not None:
                raise InvalidArgument(f"{name}: is given together with {mine}, its other name")
            if x is not None:
                setattr(found, mine, x)
        elif name in Extra.__dataclass_fields__ and name not in own:
            setattr(found, name, x)
        else:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    if found.out is not None:
        check_tensor("out", found.out)
    return found


def refuse_gradients(name: str, *tensors: Optional[Tensor]) -> None:
    """Where a result goes into a tensor of the caller, or comes from pages, there is no backward."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        raise InvalidArgument(
            f"{name}: is given, and gradients are wanted; they need a call without it, or no_grad"
        )


def only_values(q: Any, k: Any, qv: Optional[Tensor]) -> Tensor:
    """With only_qv the scores are qv.v alone: qv is the query, and the values are the keys."""
    if q is not None or k is not None or qv is None:
        raise InvalidArgument(
            "only_qv: True; q and k (or k_cache) must then be None, and qv is needed"
        )
    check_tensor("qv", qv)
    return qv
