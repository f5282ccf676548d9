"""The weights of a published model, from a directory or from the Hugging Face hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import torch
from torch import Tensor

__all__ = ["state_dict_from_pretrained"]

# In search order: one file, or an index of several.
_NAMES = (
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "model.safetensors",
    "model.safetensors.index.json",
)


def _file(model_name: str, name: str) -> Optional[Path]:
    local = Path(model_name) / name
    if Path(model_name).is_dir():
        return local if local.is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(hf_hub_download(model_name, name))
    except EntryNotFoundError:
        return None


def _load(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def state_dict_from_pretrained(
    model_name: str, device: Any = None, dtype: Optional[torch.dtype] = None
) -> dict[str, Tensor]:
    """All weights of a model by name; converted to dtype before they go to the device."""
    for name in _NAMES:
        path = _file(model_name, name)
        if path is None:
            continue
        parts = [path]
        if path.suffix == ".json":
            listed = json.loads(path.read_text())["weight_map"].values()
            parts = [_file(model_name, part) or Path(part) for part in sorted(set(listed))]
        weights = {key: x for part in parts for key, x in _load(part).items()}
        return {key: x.to(dtype=dtype).to(device=device) for key, x in weights.items()}
    raise OSError(f"model_name is {model_name!r}; it must have one of {', '.join(_NAMES)}")
