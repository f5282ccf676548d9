"""Samples an image with a diffusion transformer of diffusers on rocflash's attention.

    python examples/diffusers_model.py                 # a small random DiT, offline
    python examples/diffusers_model.py --steps 50 --size 64

`rocflash.sdpa.enable` lets every call of torch's scaled_dot_product_attention compute here; a real
pipeline needs no other line: `with rocflash.sdpa.enable(): image = pipe(prompt).images[0]`. The
same noise is then sampled again with torch's attention, and the results must agree.
"""

from __future__ import annotations

import argparse
import time

import torch
from diffusers import DDIMScheduler, DiTTransformer2DModel

import rocflash


def model(size: int) -> DiTTransformer2DModel:
    torch.manual_seed(0)
    return DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=32,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=size,
        patch_size=2,
        num_embeds_ada_norm=1000,
        norm_num_groups=4,
    ).eval()


@torch.no_grad()
def sample(transformer: DiTTransformer2DModel, noise: torch.Tensor, steps: int) -> torch.Tensor:
    scheduler = DDIMScheduler()
    scheduler.set_timesteps(steps)
    label = torch.zeros(len(noise), dtype=torch.long, device=noise.device)
    image = noise
    for t in scheduler.timesteps:
        predicted = transformer(image, timestep=t.expand(len(noise)).to(noise.device),
                                class_labels=label).sample  # fmt: skip
        image = scheduler.step(predicted, t, image).prev_sample
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--size", type=int, default=16, help="of the latent image, even")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    transformer = model(options.size).to(device)
    noise = torch.randn(1, 4, options.size, options.size, device=device)

    start = time.perf_counter()
    with rocflash.sdpa.enable(strict=True):  # strict: what would be left to torch is an error
        image = sample(transformer, noise, options.steps)
    seconds = time.perf_counter() - start
    calls = sum(n for served, n in rocflash.sdpa.counts().items() if served.by == "rocflash")
    expected = sample(transformer, noise, options.steps)
    difference = (image - expected).abs().max().item() / expected.abs().max().item()
    print(f"{options.steps} steps in {seconds:.2f} s on {device}, {calls} calls of attention; "
          f"largest relative difference from torch {difference:.1e}")  # fmt: skip
    if calls == 0 or not difference < 1e-3:
        raise SystemExit("rocflash's image differs from torch's")


if __name__ == "__main__":
    main()
