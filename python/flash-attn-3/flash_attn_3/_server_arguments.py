"""Arguments that the FlashAttention-3 builds of vLLM and SGLang add to its functions.

They are keyword arguments outside of the signatures, which clients inspect. Synonyms are mapped to
upstream's arguments; unsupported arguments must have their neutral values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor

from rocflash.dropin import InvalidArgument, Unsupported, check_tensor

# Servers' names and the corresponding arguments of upstream.
_SYNONYMS = {"sinks": "s_aux", "q_v": "qv", "block_table": "page_table"}
# Unsupported arguments and their neutral values.
_UNSUPPORTED = {
    "alibi_slopes": (None,),
    "aux_tensors": (None,),
    "cp_rank": (0,),
    "cp_tot_seqused_k": (None,),
    "cp_world_size": (1,),
    "dynamic_causal": (None, False),
    "mask_mod": (None,),
}
# Generations of upstream's kernels; the argument has no effect here.
_VERSIONS = (None, 2, 3, 4)


@dataclass
class Extra:
    """The arguments of a call besides upstream's."""

    s_aux: Optional[Tensor] = None
    qv: Optional[Tensor] = None
    page_table: Optional[Tensor] = None
    out: Optional[Tensor] = None
    scheduler_metadata: Optional[Tensor] = None
    only_qv: bool = False
    return_softmax_lse: bool = False


def read(function: str, given: dict[str, Any], **own: Any) -> Extra:
    """Parses `given`; `own` are the arguments of the function with names in `Extra`."""
    found = Extra(**own)
    for name, x in given.items():
        if name in _UNSUPPORTED:
            if isinstance(x, Tensor) or x not in _UNSUPPORTED[name]:
                raise Unsupported(
                    f"{name} is given; it is not supported, so it must be {_UNSUPPORTED[name][0]}"
                )
        elif name == "fa_version":
            if x not in _VERSIONS:
                raise InvalidArgument(f"fa_version is {x!r}; it must be 2, 3, 4 or None")
        elif name in _SYNONYMS:
            upstream = _SYNONYMS[name]
            if x is not None and own.get(upstream) is not None:
                raise InvalidArgument(
                    f"{name} is given with {upstream}, its other name; one of them must be None"
                )
            if x is not None:
                setattr(found, upstream, x)
        elif name in Extra.__dataclass_fields__ and name not in own:
            setattr(found, name, x)
        else:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    if found.out is not None:
        check_tensor("out", found.out)
    return found


def refuse_gradients(name: str, *tensors: Optional[Tensor]) -> None:
    """Rejects gradients: there are none with an `out` tensor or a paged KV cache."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        raise InvalidArgument(
            f"{name} is given and a gradient is required; gradients need a call without it, or use "
            "no_grad"
        )


def only_values(q: Any, k: Any, qv: Optional[Tensor]) -> Tensor:
    """The query of only_qv, whose scores are qv.v: the values are also the keys."""
    if q is not None or k is not None or qv is None:
        raise InvalidArgument(
            "only_qv is True; q and k (or k_cache) must then be None, and qv must be given"
        )
    check_tensor("qv", qv)
    return qv
