"""rocflash's backends as vLLM's default: ROCFLASH_VLLM_DEFAULT=1.

A platform of vLLM selects the first valid backend of a fixed list (on ROCm ROCM_ATTN, then
TRITON_ATTN; for MLA TRITON_MLA). `prefer` puts rocflash's before that list. vLLM's own validation
decides: a layer that they do not support keeps vLLM's selection, and the log says why. A backend
that is requested by name is not changed.
"""

from __future__ import annotations

from typing import Any

from .vllm import LATENT_NAME, NAME


def prefer() -> None:
    """Makes the current platform select rocflash's backends. Idempotent."""
    from vllm.platforms import current_platform

    platform: Any = (
        current_platform if isinstance(current_platform, type) else type(current_platform)
    )
    if "_rocflash" in vars(platform):
        return
    platform._rocflash = True
    _prefer_backends(platform)
    if hasattr(platform, "get_mla_prefill_backend_cls"):
        _prefer_prefill(platform)


def _prefer_backends(platform: Any) -> None:
    theirs = platform.get_attn_backend_cls.__func__

    def get_attn_backend_cls(
        cls: Any, selected_backend: Any, attn_selector_config: Any, *rest: Any, **named: Any
    ) -> str:
        if selected_backend is None:
            from vllm.v1.attention.backends.registry import AttentionBackendEnum

            ours = AttentionBackendEnum.__members__[
                LATENT_NAME if attn_selector_config.use_mla else NAME
            ]
            reasons = ours.get_class().validate_configuration(
                device_capability=cls.get_device_capability(), **attn_selector_config._asdict()
            )
            if _say(f"{ours.name} attention backend", reasons):
                return str(ours.get_path())
        return str(theirs(cls, selected_backend, attn_selector_config, *rest, **named))

    platform.get_attn_backend_cls = classmethod(get_attn_backend_cls)


def _prefer_prefill(platform: Any) -> None:
    theirs = platform.get_mla_prefill_backend_cls.__func__

    def get_mla_prefill_backend_cls(cls: Any, mla_selector_config: Any) -> Any:
        from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum

        ours = MLAPrefillBackendEnum.__members__[NAME].get_class()
        reasons = ours.validate_configuration(cls.get_device_capability(), mla_selector_config)
        if _say(f"{NAME} MLA prefill backend", reasons):
            return ours
        return theirs(cls, mla_selector_config)

    platform.get_mla_prefill_backend_cls = classmethod(get_mla_prefill_backend_cls)


def _say(what: str, reasons: list[str]) -> bool:
    """Logs whether rocflash's backend is selected, and if not, why."""
    from vllm.logger import init_logger

    # Under vLLM's name, whose messages its configuration shows.
    logger = init_logger("vllm.rocflash")
    if reasons:
        logger.warning("%s not used: %s. vLLM selects its own.", what, ", ".join(reasons))
    else:
        logger.info("Using %s (ROCFLASH_VLLM_DEFAULT=1).", what)
    return not reasons
