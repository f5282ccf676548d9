"""Transformer blocks under upstream's names: attention and MLP sequential or parallel.

MHA and LinearResidual are also exported here, for compatibility with earlier versions.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Optional

import torch
from torch import Tensor, nn

from flash_attn.modules._mha import MHA, LinearResidual
from flash_attn.modules.mlp import Mlp
from flash_attn.ops.rms_norm import RMSNorm as _OldRMSNorm
from flash_attn.ops.triton.layer_norm import RMSNorm, layer_norm_fn
from rocflash.dropin import InvalidArgument

__all__ = ["MHA", "Block", "LinearResidual", "ParallelBlock"]


class _StochasticDepth(nn.Module):
    """Stochastic depth: drops a branch for some rows of a batch in training and scales the others
    up.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if self.p == 0 or not self.training:
            return x
        rows = torch.rand([x.shape[0]] + [1] * (x.dim() - 1), device=x.device)
        keep = (rows >= self.p).to(x.dtype)
        return x * (keep if self.p == 1 else keep / (1 - self.p))


def _mark(norms: list[nn.Module], sequence_parallel: bool, mark_shared_params: bool) -> None:
    """Parameters that flash_attn.utils.distributed looks for."""
    for norm in norms:
        for parameter in norm.parameters():
            if sequence_parallel:
                parameter._sequence_parallel = True  # type: ignore[attr-defined]
            if mark_shared_params:
                parameter._shared_params = True  # type: ignore[attr-defined]


def _check_fused(norm: nn.Module, dropout: nn.Module) -> None:
    if not isinstance(norm, (nn.LayerNorm, RMSNorm, _OldRMSNorm)) or not isinstance(
        dropout, nn.Dropout
    ):
        raise InvalidArgument(
            f"fused_dropout_add_ln is True, with {type(norm).__name__} and "
            f"{type(dropout).__name__}; "
            "it requires a LayerNorm or RMSNorm, and a Dropout"
        )


def _fused(norm: Any, dropout: Any, x: Tensor, residual: Optional[Tensor], **more: Any) -> Any:
    return layer_norm_fn(
        x,
        norm.weight,
        norm.bias,
        residual=residual,
        eps=norm.eps,
        dropout_p=dropout.p if norm.training else 0.0,
        is_rms_norm=not isinstance(norm, nn.LayerNorm),
        **more,
    )


def _plus(x: Tensor, residual: Optional[Tensor]) -> Tensor:
    return x if residual is None else x + residual


def _normed(norm: Any, x: Tensor) -> Tensor:
    return norm(x.to(norm.weight.dtype))


class _Mixing(nn.Module):
    """Base of both blocks: a mixer, whose caches are the block's."""

    mixer: Any

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: Any = None, **kwargs: Any
    ) -> Any:
        return self.mixer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)


class Block(_Mixing):
    """With prenorm: dropout, add, norm, mixer, dropout, add, norm, MLP; takes and returns
    (hidden_states, residual), so that what comes between two blocks can be one step.
    Without: mixer, dropout, add, norm, MLP, dropout, add, norm; hidden_states alone.

    return_residual: mixer and MLP return their input as well.
    """

    def __init__(
        self,
        dim: int,
        mixer_cls: Optional[Callable[[int], nn.Module]] = None,
        mlp_cls: Optional[Callable[[int], nn.Module]] = None,
        norm_cls: Callable[[int], nn.Module] = nn.LayerNorm,
        dropout_cls: Callable[[float], nn.Module] = nn.Dropout,
        prenorm: bool = True,
        resid_dropout1: float = 0.0,
        resid_dropout2: float = 0.0,
        drop_path1: float = 0.0,
        drop_path2: float = 0.0,
        fused_dropout_add_ln: bool = False,
        return_residual: bool = False,
        residual_in_fp32: bool = False,
        sequence_parallel: bool = False,
        mark_shared_params: bool = False,
    ) -> None:
        super().__init__()
        if residual_in_fp32 and not prenorm:
            raise InvalidArgument("residual_in_fp32 is True; without prenorm it must be False")
        self.prenorm = prenorm
        self.fused_dropout_add_ln = fused_dropout_add_ln
        self.return_residual = return_residual
        self.residual_in_fp32 = residual_in_fp32
        self.mixer = (mixer_cls or partial(MHA, num_heads=dim // 64))(dim)
        self.dropout1 = dropout_cls(resid_dropout1)
        self.drop_path1 = _StochasticDepth(drop_path1)
        self.norm1 = norm_cls(dim)
        self.mlp = (mlp_cls or partial(Mlp, hidden_features=4 * dim))(dim)
        norms = [self.norm1]
        if not isinstance(self.mlp, nn.Identity):
            self.dropout2 = dropout_cls(resid_dropout2)
            self.drop_path2 = _StochasticDepth(drop_path2)
            self.norm2 = norm_cls(dim)
            norms.append(self.norm2)
        if fused_dropout_add_ln:
            _check_fused(self.norm1, self.dropout1)
        _mark(norms, sequence_parallel, mark_shared_params)

    def _add_norm(
        self, x: Tensor, residual: Optional[Tensor], norm: Any, dropout: Any, path: Any
    ) -> tuple[Tensor, Tensor]:
        """(norm of the sum, the sum)."""
        if self.fused_dropout_add_ln:
            rows = None
            if path.p > 0 and self.training:
                rows = path(x.new_ones(x.shape[:-1]))
            return _fused(
                norm,
                dropout,
                x,
                residual,
                rowscale=rows,
                prenorm=True,
                residual_in_fp32=self.residual_in_fp32,
            )
        total = _plus(path(dropout(x)), residual)
        return _normed(norm, total), total.float() if self.residual_in_fp32 else total

    def forward(
        self,
        hidden_states: Tensor,
        residual: Optional[Tensor] = None,
        mixer_subset: Any = None,
        mixer_kwargs: Optional[dict[str, Any]] = None,
    ) -> Any:
        """mixer_subset: the positions to continue with, for cross-attention."""
        arguments = dict(mixer_kwargs or {})
        has_mlp = not isinstance(self.mlp, nn.Identity)
        if self.prenorm:
            first = (self.norm1, self.dropout1, self.drop_path1)
            hidden_states, total = self._add_norm(hidden_states, residual, *first)
            if mixer_subset is not None:
                arguments["mixer_subset"] = mixer_subset
            hidden_states = self.mixer(hidden_states, **arguments)
            if mixer_subset is not None:
                total = total[:, mixer_subset]
            if has_mlp:
                second = (self.norm2, self.dropout2, self.drop_path2)
                hidden_states, total = self._add_norm(hidden_states, total, *second)
                hidden_states = self.mlp(hidden_states)
            return hidden_states, total
        if residual is not None:
            raise InvalidArgument("residual is given; without prenorm it must be None")
        found = self.mixer(hidden_states, **arguments)
        out, kept = found if self.return_residual else (found, hidden_states)
        hidden_states, _ = self._add_norm(out, kept, self.norm1, self.dropout1, self.drop_path1)
        if has_mlp:
            found = self.mlp(hidden_states)
            out, kept = found if self.return_residual else (found, hidden_states)
            hidden_states, _ = self._add_norm(out, kept, self.norm2, self.dropout2, self.drop_path2)
        return hidden_states


class ParallelBlock(_Mixing):
    """Mixer and MLP in parallel over norms of the same sum; with tied_norm over one norm."""

    def __init__(
        self,
        dim: int,
        mixer_cls: Optional[Callable[[int], nn.Module]] = None,
        mlp_cls: Optional[Callable[[int], nn.Module]] = None,
        norm_cls: Callable[[int], nn.Module] = nn.LayerNorm,
        dropout_cls: Callable[[float], nn.Module] = nn.Dropout,
        resid_dropout1: float = 0.0,
        resid_dropout2: float = 0.0,
        tied_norm: bool = False,
        fused_dropout_add_ln: bool = False,
        residual_in_fp32: bool = False,
        sequence_parallel: bool = False,
        mark_shared_params: bool = False,
    ) -> None:
        super().__init__()
        self.tied_norm = tied_norm
        self.fused_dropout_add_ln = fused_dropout_add_ln
        self.residual_in_fp32 = residual_in_fp32
        self.mixer = (mixer_cls or partial(MHA, num_heads=dim // 64))(dim)
        self.dropout1 = dropout_cls(resid_dropout1)
        self.norm1 = norm_cls(dim)
        self.mlp = (mlp_cls or partial(Mlp, hidden_features=4 * dim))(dim)
        self.dropout2 = dropout_cls(resid_dropout2)
        norms = [self.norm1]
        if not tied_norm:
            self.norm2 = norm_cls(dim)
            norms.append(self.norm2)
        if fused_dropout_add_ln:
            _check_fused(self.norm1, self.dropout1)
        _mark(norms, sequence_parallel, mark_shared_params)

    def forward(
        self,
        hidden_states1: Tensor,
        hidden_states2: Optional[Tensor] = None,
        residual: Optional[Tensor] = None,
        mixer_kwargs: Optional[dict[str, Any]] = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """hidden_states1 and 2: the results of the preceding block for mixer and MLP."""
        if self.fused_dropout_add_ln:
            second = {}
            if not self.tied_norm:
                second = {"weight1": self.norm2.weight, "bias1": self.norm2.bias}
            found = _fused(
                self.norm1,
                self.dropout1,
                hidden_states1,
                residual,
                x1=hidden_states2,
                prenorm=True,
                residual_in_fp32=self.residual_in_fp32,
                **second,
            )
            for_mixer, for_mlp, total = (found[0], found[-2], found[-1])
        else:
            total = _plus(self.dropout1(hidden_states1), residual)
            if hidden_states2 is not None:
                total = total + self.dropout2(hidden_states2)
            for_mixer = _normed(self.norm1, total)
            for_mlp = for_mixer if self.tied_norm else _normed(self.norm2, total)
            if self.residual_in_fp32:
                total = total.float()
        return self.mixer(for_mixer, **(mixer_kwargs or {})), self.mlp(for_mlp), total
