"""Mocks of vLLM and SGLang for attention backends, written from their interfaces (vLLM 0.32, SGLang
0.5.23).

The packages need a GPU's build of torch and dozens of others, so tests replace them with these
modules: the base classes with the methods that the servers call, their registries, and the
arguments of a model runner. Where the real package can be imported, `install` leaves it alone.
"""

from __future__ import annotations

import contextlib
import enum
import importlib.util
import logging
import sys
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


def install(modules: dict[str, dict[str, Any]]) -> None:
    """Makes modules with these names in them, packages above included, unless the real package is
    installed.
    """
    root = next(iter(modules)).partition(".")[0]
    if root in sys.modules or importlib.util.find_spec(root) is not None:
        return
    for path, names in modules.items():
        parts = path.split(".")
        for n in range(1, len(parts) + 1):
            name = ".".join(parts[:n])
            if name not in sys.modules:
                module = sys.modules[name] = types.ModuleType(name)
                module.__path__ = []
                if n > 1:
                    setattr(sys.modules[".".join(parts[: n - 1])], parts[n - 1], module)
        vars(sys.modules[path]).update(names)


# vLLM.


class VllmType(str, enum.Enum):
    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"


@dataclass(frozen=True)
class MultipleOf:
    base: int


class GraphSupport(enum.Enum):
    ALWAYS = 3
    UNIFORM_BATCH = 2
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    NEVER = 0


class VllmBackend(ABC):
    supported_dtypes = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update = True

    @staticmethod
    @abstractmethod
    def get_name() -> str: ...

    @staticmethod
    @abstractmethod
    def get_impl_cls() -> type: ...

    @staticmethod
    @abstractmethod
    def get_builder_cls() -> type: ...

    @classmethod
    def supports_kv_cache_dtype(cls, name: Any) -> bool:
        return name is None or name in cls.supported_kv_cache_dtypes

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        sizes = cls.get_supported_head_sizes()
        return not sizes or head_size in sizes

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []

    @classmethod
    def supports_block_size(cls, size: Any) -> bool:
        return size is None or any(
            size % x.base == 0 for x in cls.get_supported_kernel_block_sizes()
        )

    @classmethod
    def is_mla(cls) -> bool:
        return False

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == VllmType.DECODER

    supports_sink = supports_sliding_window = supports_non_causal = is_mla

    @classmethod
    def validate_configuration(
        cls, head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse,
        use_mm_prefix,
        use_per_head_quant_scales, device_capability, attn_type, has_sliding_window=False,
        use_non_causal=False,
    ) -> list[str]:  # fmt: skip
        """vLLM's validation of attention backends, with its messages."""
        combination = cls.supports_combination(
            head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse,
            use_mm_prefix, device_capability
        )  # fmt: skip
        asked = {
            "head_size not supported": cls.supports_head_size(head_size),
            "dtype not supported": dtype in cls.supported_dtypes,
            "kv_cache_dtype not supported": cls.supports_kv_cache_dtype(kv_cache_dtype),
            "block_size not supported": cls.supports_block_size(block_size),
            "MLA not supported": not use_mla or cls.is_mla(),
            "non-MLA not supported": use_mla or not cls.is_mla(),
            "partial multimodal token full attention not supported": not use_mm_prefix,
            "sparse not supported": not use_sparse,
            "per-head quant scales not supported": not use_per_head_quant_scales,
            "attention sinks not supported": not has_sink or cls.supports_sink(),
            f"attention type {attn_type} not supported": cls.supports_attn_type(attn_type),
            "sliding window not supported": not has_sliding_window or cls.supports_sliding_window(),
            "non-causal attention not supported": not use_non_causal or cls.supports_non_causal(),
        }
        return [name for name, fits in asked.items() if not fits] + [combination] * bool(
            combination
        )


class VllmBuilder(ABC, Generic[T]):
    _cudagraph_support = GraphSupport.NEVER
    supports_update_block_table = False

    @abstractmethod
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        self.kv_cache_spec, self.layer_names = kv_cache_spec, layer_names
        self.vllm_config, self.device = vllm_config, device

    @abstractmethod
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False) -> Any: ...

    def build_for_cudagraph_capture(self, common_attn_metadata) -> Any:
        return self.build(common_prefix_len=0, common_attn_metadata=common_attn_metadata)

    def _init_reorder_batch_threshold(self, threshold=1, supports_spec_as_decode=False) -> None:
        drafts = self.vllm_config.speculative_config
        extra = drafts.num_speculative_tokens if drafts and supports_spec_as_decode else 0
        self.reorder_batch_threshold = threshold + extra


def split_decodes_and_prefills(common, decode_threshold=1) -> tuple[int, int, int, int]:
    """vLLM's, of a batch whose short sequences come first."""
    starts = common.query_start_loc_cpu.tolist()
    short = [b - a <= decode_threshold for a, b in zip(starts, starts[1:])]
    n = short.index(False) if False in short else len(short)
    return n, len(short) - n, starts[n], starts[-1] - starts[n]


def get_dcp_local_seq_lens(seq_lens, size=1, rank=0, interleave=1) -> torch.Tensor:
    """How many of these keys a rank has: `interleave` keys per rank and round."""
    whole = size * interleave
    return seq_lens // whole * interleave + (seq_lens % whole - rank * interleave).clamp(
        0, interleave
    )


class VllmPlatform:
    """Selects by its own list, here always the same."""

    @classmethod
    def get_device_capability(cls) -> Any:
        return None

    @classmethod
    def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None) -> str:
        return "theirs" if selected_backend is None else selected_backend.get_path()

    @classmethod
    def get_mla_prefill_backend_cls(cls, mla_selector_config) -> Any:
        return "theirs"


class VllmImpl(ABC, Generic[T]):
    dcp_world_size = 1

    @abstractmethod
    def __init__(self, *_: Any, **__: Any) -> None: ...

    @abstractmethod
    def forward(self, *_: Any, **__: Any) -> torch.Tensor: ...


class VllmLatentBackend(VllmBackend):
    @staticmethod
    def get_builder_cls() -> type:
        return VllmLatentBuilder

    @classmethod
    def is_mla(cls) -> bool:
        return True


class VllmLatentBuilder(VllmBuilder[T]):
    def __init__(self, *given: Any) -> None: ...

    def build(self, *_: Any, **__: Any) -> Any: ...


class VllmLatentImpl(VllmImpl[T]):
    """The part of vLLM's that decode uses."""

    need_to_return_lse_for_decode = False
    dcp_world_size = 1

    def __init__(
        self, num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window,
        kv_cache_dtype, logits_soft_cap,
        attn_type, kv_sharing_target_layer_name, q_lora_rank, kv_lora_rank, qk_nope_head_dim,
        qk_rope_head_dim,
        qk_head_dim, v_head_dim, kv_b_proj, indexer=None, q_pad_num_heads=None,
    ) -> None:  # fmt: skip
        self.scale, self.kv_lora_rank = float(scale), kv_lora_rank

    def forward(self, *_: Any, **__: Any) -> Any: ...


class VllmPrefill(ABC):
    def __init__(
        self,
        num_heads,
        scale,
        kv_lora_rank,
        qk_nope_head_dim,
        qk_rope_head_dim,
        v_head_dim,
        vllm_config,
    ) -> None:
        self.scale = scale

    def prepare_metadata(self, prefill_metadata: Any) -> None:
        self._prefill_metadata = prefill_metadata

    @classmethod
    def validate_configuration(cls, device_capability, selector_config) -> list[str]:
        fits = cls.supports_mla_dimensions(selector_config.mla_dimensions)
        return [] if fits else ["MLA dimensions not supported"]

    @abstractmethod
    def run_prefill_new_tokens(
        self, q, k, v, return_softmax_lse, out=None, output_scale=None
    ) -> Any: ...

    @abstractmethod
    def run_prefill_context_chunk(self, chunk, q, k, v, out=None) -> Any: ...


class VllmQueryLen(enum.Enum):
    SINGLE_ONLY = "single_only"
    UNIFORM = "uniform"
    VARLEN = "varlen"


class VllmBackends:
    """The enumeration, to which names can be added."""

    __members__: dict[str, Any] = {}

    def __init__(self, name: str, path: Any) -> None:
        self.name, self.path = name, path
        self.__members__[name] = self

    def is_overridden(self) -> bool:
        return self.path is not None

    def get_path(self) -> str:
        return self.path

    def get_class(self) -> type:
        module, _, name = self.path.rpartition(".")
        return getattr(importlib.import_module(module), name)


VllmBackends.CUSTOM = VllmBackends("CUSTOM", None)


class VllmPrefills(VllmBackends):
    __members__: dict[str, Any] = {}


def register_backend(backend: Any, class_path: str, among: Any = VllmBackends) -> None:
    if isinstance(backend, str):
        assert backend not in among.__members__, backend
        among(backend, class_path)
    else:
        backend.path = class_path


def register_prefill(backend: Any, class_path: str) -> None:
    register_backend(backend, class_path, VllmPrefills)


def reshape_and_cache_flash(
    key, value, keys, values, slots, kv_cache_dtype, k_scale, v_scale
) -> None:
    """vLLM's operator: as many rows as there are slots, to their block and row in it."""
    size = keys.shape[1]
    for rows, cache in ((key, keys), (value, values)):
        cache.index_put_((slots // size, slots % size), rows[: slots.shape[0]])


def install_vllm() -> None:
    install(
        {
            "vllm.v1.attention.backend": {
                "AttentionBackend": VllmBackend,
                "AttentionCGSupport": GraphSupport,
                "AttentionImpl": VllmImpl,
                "AttentionMetadataBuilder": VllmBuilder,
                "AttentionType": VllmType,
                "MultipleOf": MultipleOf,
            },
            "vllm.v1.attention.backends.registry": {
                "AttentionBackendEnum": VllmBackends,
                "register_backend": register_backend,
            },
            "vllm.model_executor.layers.attention.mla_attention": {
                "MLACommonBackend": VllmLatentBackend,
                "MLACommonImpl": VllmLatentImpl,
                "MLACommonMetadata": Any,
                "MLACommonMetadataBuilder": VllmLatentBuilder,
                "QueryLenSupport": VllmQueryLen,
            },
            "vllm.v1.attention.backends.mla.prefill.base": {"MLAPrefillBackend": VllmPrefill},
            "vllm.v1.attention.backends.mla.prefill.registry": {
                "MLAPrefillBackendEnum": VllmPrefills,
                "register_mla_prefill_backend": register_prefill,
            },
            "vllm.v1.attention.backends.utils": {
                "get_dcp_local_seq_lens": get_dcp_local_seq_lens,
                "split_decodes_and_prefills": split_decodes_and_prefills,
            },
            "vllm.platforms": {"current_platform": VllmPlatform()},
            "vllm.logger": {"init_logger": logging.getLogger},
            "vllm.distributed.parallel_state": {
                "get_dcp_group": None,
                "get_dcp_world_size_and_rank": None,
            },
            "vllm._custom_ops": {"reshape_and_cache_flash": reshape_and_cache_flash},
        }
    )


# SGLang.

SGLANG_BACKENDS: dict[str, Any] = {}
SGLANG_CHOICES = ["triton", "aiter"]


def register_attention_backend(name: str) -> Any:
    def decorate(function: Any) -> Any:
        SGLANG_BACKENDS[name] = function
        return function

    return decorate


class SglangType(enum.Enum):
    DECODER = "decoder"
    DECODER_BIDIRECTIONAL = "decoder_bidirectional"
    ENCODER_ONLY = "encoder_only"


class Mode(enum.IntEnum):
    EXTEND = 1
    DECODE = 2
    MIXED = 3
    IDLE = 4
    TARGET_VERIFY = 5

    def is_decode(self) -> bool:
        return self is Mode.DECODE

    def is_idle(self) -> bool:
        return self is Mode.IDLE

    def is_decode_or_idle(self) -> bool:
        return self in (Mode.DECODE, Mode.IDLE)

    def is_mixed(self) -> bool:
        return self is Mode.MIXED


class SglangBackend:
    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **named) -> Any:
        mode = forward_batch.forward_mode
        if mode.is_idle():
            return q.new_empty(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)
        call = self.forward_decode if mode.is_decode() else self.forward_extend
        return call(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **named)


@dataclass
class WriteLoc:
    loc: torch.Tensor
    swa_loc: Any = None

    @classmethod
    def for_layer(cls, forward_batch, layer, *, swa_loc=None) -> WriteLoc:
        return cls(forward_batch.out_cache_loc, swa_loc)


class Pool:
    """Keys and values of all layers, one row per token."""

    def __init__(self, rows: int, heads: int, size: int, dtype: torch.dtype, device: Any) -> None:
        self.rows = [torch.randn(rows, heads, size, dtype=dtype, device=device) for _ in range(2)]

    def get_kv_buffer(self, layer_id: int) -> Any:
        return self.rows

    def set_kv_buffer(self, layer, write_loc, k, v, k_scale=None, v_scale=None) -> None:
        for rows, x in zip(self.rows, (k, v)):
            rows[write_loc.loc] = x.view(-1, *rows.shape[1:])


class WindowPool(Pool):
    """With a smaller pool for windowed layers, and a table from the slots of one to those of the
    other.
    """

    swa_layer_nums = 1

    def __init__(self, rows: int, window_rows: int, *like: Any) -> None:
        super().__init__(rows, *like)
        self.window = Pool(window_rows, *like)
        self.mapping = (
            torch.randperm(window_rows).repeat(-(-rows // window_rows))[:rows].to(like[-1])
        )

    def translate_loc_from_full_to_swa(self, slots: torch.Tensor) -> torch.Tensor:
        return self.mapping[slots]

    def get_kv_buffer(self, layer_id: int) -> Any:
        return self.window.rows if layer_id else self.rows

    def set_kv_buffer(self, layer, write_loc, *rest) -> None:
        if not layer.layer_id:
            return super().set_kv_buffer(layer, write_loc, *rest)
        assert write_loc.swa_loc is not None
        return self.window.set_kv_buffer(layer, WriteLoc(write_loc.swa_loc), *rest)


class LatentPool:
    """MLA: one row of latent and rotary columns per token, the first of which are the values."""

    def __init__(self, rows: int, columns: int, values: int, dtype: Any, device: Any) -> None:
        self.rows = torch.randn(rows, 1, columns, dtype=dtype, device=device)
        self.values = values

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.rows

    def get_kv_buffer(self, layer_id: int) -> Any:
        return self.rows, self.rows[..., : self.values]

    def set_kv_buffer(self, layer, place, k, v) -> None:
        self.rows[place.loc] = k.view(-1, *self.rows.shape[1:])


class HookType(enum.Enum):
    AROUND = "around"


class HookRegistry:
    """SGLang applies the hooks after all plugins are loaded."""

    hooks: dict[str, Any] = {}

    @classmethod
    def register(cls, target: str, hook: Any, kind: HookType) -> None:
        assert target not in cls.hooks and kind is HookType.AROUND
        cls.hooks[target] = hook


def install_sglang() -> None:
    install(
        {
            "sglang.srt.layers.attention.attention_registry": {
                "ATTENTION_BACKENDS": SGLANG_BACKENDS,
                "register_attention_backend": register_attention_backend,
            },
            "sglang.srt.server_args": {
                "ATTENTION_BACKEND_CHOICES": SGLANG_CHOICES,
                "add_attention_backend_choices": SGLANG_CHOICES.extend,
            },
            "sglang.srt.layers.attention.base_attn_backend": {"AttentionBackend": SglangBackend},
            "sglang.srt.layers.radix_attention": {"AttentionType": SglangType},
            "sglang.srt.plugins.hook_registry": {
                "HookRegistry": HookRegistry,
                "HookType": HookType,
            },
            "sglang.srt.mem_cache.memory_pool": {"KVWriteLoc": WriteLoc},
            "sglang.srt.mem_cache.swa_memory_pool": {"SWAKVPool": WindowPool},
        }
    )


@contextlib.contextmanager
def nothing_read(kind: str = "") -> Any:
    """Fails when a tensor of this device type has its values read on the host.

    On a GPU that synchronizes and breaks graph capture.
    """
    names = ("item", "tolist", "cpu", "numpy", "__int__", "__bool__", "__float__", "__index__")
    kept = {name: vars(torch.Tensor).get(name) for name in names}

    def refuse(name: str) -> Any:
        real = getattr(torch.Tensor, name)

        def read(self: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            if kind and self.device.type != kind:
                return real(self, *arguments, **named)
            raise AssertionError(f"{name}: a tensor's values are read on the host")

        return read

    try:
        for name in names:
            setattr(torch.Tensor, name, refuse(name))
        yield
    finally:
        for name, function in kept.items():
            if function is None:  # it was the base class's
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, function)
