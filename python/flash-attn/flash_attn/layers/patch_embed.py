"""Images cut into patches, each projected to a vector."""

from __future__ import annotations

from typing import Any, Callable, Optional

from torch import Tensor, nn
from torch.nn.modules.utils import _pair

from flash_attn.ops.fused_dense import FusedDense
from rocflash.dropin import InvalidArgument

__all__ = ["PatchEmbed"]


class PatchEmbed(nn.Module):
    """(b, channels, height, width) to (b, patches, embed_dim), or (b, rows, columns, embed_dim)
    without flatten. The projection is a linear layer over a patch's values, channels first."""

    def __init__(
        self,
        img_size: Any = 224,
        patch_size: Any = 16,
        in_chans: int = 3,
        embed_dim: int = 768,
        norm_layer: Optional[Callable[[int], nn.Module]] = None,
        flatten: bool = True,
        bias: bool = True,
        fused_bias_fc: bool = False,
    ) -> None:
        super().__init__()
        self.img_size = _pair(img_size)
        self.patch_size = _pair(patch_size)
        self.grid_size = tuple(n // p for n, p in zip(self.img_size, self.patch_size))
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        self.flatten = flatten
        linear = FusedDense if fused_bias_fc and bias else nn.Linear
        self.proj = linear(in_chans * self.patch_size[0] * self.patch_size[1], embed_dim, bias=bias)
        self.norm = norm_layer(embed_dim) if norm_layer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[2:]) != tuple(self.img_size):
            raise InvalidArgument(
                f"x has images of size {tuple(x.shape[2:])}; it must be {self.img_size}"
            )
        high, wide = self.patch_size
        patches = x.unflatten(3, (-1, wide)).unflatten(2, (-1, high))  # b c h high w wide
        found = self.proj(patches.permute(0, 2, 4, 1, 3, 5).flatten(3))
        return self.norm(found.flatten(1, 2) if self.flatten else found)
