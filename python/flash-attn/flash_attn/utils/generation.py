"""Generation for models built from flash_attn's modules: the state of a cache, sampling, and a
loop.

CUDA graphs (cg=True) are rejected by name; speculative decoding is not implemented.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import Tensor

from rocflash.dropin import InvalidArgument, Unsupported

__all__ = [
    "Generated",
    "GenerationMixin",
    "InferenceParams",
    "decode",
    "modify_logits_for_top_k_filtering",
    "modify_logits_for_top_p_filtering",
    "sample",
]


@dataclass
class InferenceParams:
    """The state of modules between steps: KV caches per layer, and their lengths."""

    max_seqlen: int
    max_batch_size: int
    seqlen_offset: int = 0
    batch_size_offset: int = 0
    key_value_memory_dict: dict[Any, Any] = field(default_factory=dict)
    lengths_per_sample: Optional[Tensor] = None

    def reset(self, max_seqlen: int, max_batch_size: int) -> None:
        self.max_seqlen = max_seqlen
        self.max_batch_size = max_batch_size
        self.seqlen_offset = 0
        if self.lengths_per_sample is not None:
            self.lengths_per_sample.zero_()


@dataclass
class Generated:
    """sequences (b, length); scores: the logits (b, vocabulary) of each new token."""

    sequences: Tensor
    scores: Optional[tuple[Tensor, ...]] = None


def modify_logits_for_top_k_filtering(logits: Tensor, top_k: int) -> None:
    """Sets all but the top_k logits of a row to -inf, in place."""
    lowest = torch.topk(logits, top_k)[0][..., -1:]
    logits.masked_fill_(logits < lowest, float("-inf"))


def modify_logits_for_top_p_filtering(logits: Tensor, top_p: float) -> None:
    """Sets logits to -inf, in place, that are not among the likeliest with top_p together. 0 and 1
    leave them all."""
    if top_p <= 0.0 or top_p >= 1.0:
        return
    rising, indices = torch.sort(logits, descending=False)
    unlikely = rising.softmax(-1).cumsum(-1) <= 1 - top_p
    logits.masked_fill_(unlikely.scatter(-1, indices, unlikely), float("-inf"))


def sample(logits: Tensor, top_k: int = 1, top_p: float = 0.0, temperature: float = 1.0) -> Tensor:
    """One token per row of logits (b, vocabulary); top_k=1 is the likeliest, 0 sets no limit."""
    if top_k == 1:
        return logits.argmax(dim=-1)
    if top_p > 1.0:
        raise InvalidArgument(f"top_p is {top_p}; it must be at most 1")
    if top_k > 0:
        left, indices = torch.topk(logits, min(top_k, logits.shape[-1]), dim=-1)
    else:
        left, indices = logits.clone(), None
    if temperature != 1.0:
        left = left / temperature
    modify_logits_for_top_p_filtering(left, top_p)
    drawn = torch.multinomial(left.softmax(-1), num_samples=1)
    return (drawn if indices is None else indices.gather(-1, drawn)).squeeze(-1)


@torch.inference_mode()
def decode(
    input_ids: Tensor,
    model: Any,
    max_length: int,
    top_k: int = 1,
    top_p: float = 0.0,
    temperature: float = 1.0,
    eos_token_id: Optional[int] = None,
    teacher_outputs: Optional[Tensor] = None,
    vocab_size: Optional[int] = None,
    tensor_parallel: int = 1,
    cg: bool = False,
    enable_timing: bool = False,
) -> Generated:
    """Continues input_ids (b, s), all of one length, to max_length or until all rows have ended.

    teacher_outputs (b, n): tokens to take instead of sampled ones, where it has them.
    tensor_parallel: the number of processes of the model; it has no effect.
    """
    if cg:
        raise Unsupported(
            "cg is True; decoding with CUDA graphs is not supported, so it must be False"
        )
    rows = input_ids.shape[0]
    params = InferenceParams(max_seqlen=max_length, max_batch_size=rows)
    taught = 0 if teacher_outputs is None else teacher_outputs.shape[1]
    began = time.perf_counter()
    scores, tokens, new = [], [input_ids], input_ids
    while True:
        offset = params.seqlen_offset
        position_ids = None
        if offset > 0:
            position_ids = torch.full((rows, 1), offset, dtype=torch.long, device=input_ids.device)
        logits = model(
            new, position_ids=position_ids, inference_params=params, num_last_tokens=1
        ).logits.squeeze(dim=1)
        logits = logits if vocab_size is None else logits[..., :vocab_size]
        scores.append(logits)
        params.seqlen_offset += new.shape[1]
        if teacher_outputs is not None and params.seqlen_offset < taught:
            new = teacher_outputs[:, params.seqlen_offset, None]
        else:
            new = sample(logits, top_k, top_p, temperature)[:, None]
        tokens.append(new)
        if eos_token_id is not None and bool((new == eos_token_id).all()):
            break
        if params.seqlen_offset >= max_length - 1:
            break
    if enable_timing:
        print(f"Prompt processing + decoding time: {(time.perf_counter() - began) * 1e3:.0f}ms")
    return Generated(torch.cat(tokens, dim=1), tuple(scores))


class GenerationMixin:
    """generate() for a model that takes inference_params."""

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: Any = None, **kwargs: Any
    ) -> Any:
        raise NotImplementedError

    def generate(
        self,
        input_ids: Tensor,
        max_length: int,
        top_k: int = 1,
        top_p: float = 0.0,
        temperature: float = 1.0,
        return_dict_in_generate: bool = False,
        output_scores: bool = False,
        **kwargs: Any,
    ) -> Any:
        found = decode(input_ids, self, max_length, top_k, top_p, temperature, **kwargs)
        if not output_scores:
            found.scores = None
        return found if return_dict_in_generate else found.sequences
