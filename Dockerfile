# Images with torch, rocflash and the flash_attn packages. No ROCm or CUDA SDK is in them: torch's
# wheels have the HIP runtime, which the library uses.
#
#   docker build --target rocm -t rocflash:rocm .
#   docker run --device /dev/kfd --device /dev/dri rocflash:rocm
#   docker build --target cpu --build-arg GPU_ARCHS=none -t rocflash:cpu .
#   docker run rocflash:cpu rocflash verify
#
# root, as which the images run, may use the GPUs without the groups video and render. With another
# --user add them, render by its number, since Debian's image has no group of that name:
# --group-add video --group-add "$(getent group render | cut -d: -f3)".
#
# Without a command, a container runs `rocflash doctor`. packaging/containers.json has the base's
# digest.

FROM debian:bookworm@sha256:813017f3d62be4b5891a7acca6a01bdcd4b8513daa81b1ab99d3a50385b26931 AS wheels
# GPUs to compile kernels for: all, none, or a list such as "gfx942;gfx1100".
ARG GPU_ARCHS=all
WORKDIR /src
COPY . .
RUN apt-get update && \
    apt-get install -y --no-install-recommends ca-certificates python3 python3-venv && \
    scripts/setup.sh verify && rm -rf /var/lib/apt/lists/* && \
    cmake --preset release -B build -DROCFLASH_GPU_ARCHS="$GPU_ARCHS" -DROCFLASH_BUILD_TESTS=OFF \
      -DROCFLASH_BUILD_SIM=OFF -DROCFLASH_BUILD_EXAMPLES=OFF $(scripts/setup.sh --cmake-compilers) && \
    cmake --build build --parallel "$(nproc)" --target rocflash rocflash_cli && \
    python3 packaging/universal.py --build build --out /wheels

FROM debian:bookworm@sha256:813017f3d62be4b5891a7acca6a01bdcd4b8513daa81b1ab99d3a50385b26931 AS python
RUN apt-get update && \
    apt-get install -y --no-install-recommends python3 python3-venv && \
    rm -rf /var/lib/apt/lists/* && \
    python3 -m venv /opt/rocflash
ENV PATH=/opt/rocflash/bin:$PATH
CMD ["rocflash", "doctor"]

FROM python AS cpu
ARG TORCH=2.13.0
RUN pip install --no-cache-dir "torch==$TORCH" --index-url https://download.pytorch.org/whl/cpu
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    pip install --no-cache-dir /wheels/*.whl && \
    rocflash verify --device cpu --quiet

FROM python AS rocm
ARG TORCH=2.13.0
ARG ROCM=7.2
RUN pip install --no-cache-dir "torch==$TORCH" --index-url "https://download.pytorch.org/whl/rocm$ROCM"
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    pip install --no-cache-dir /wheels/*.whl && \
    rocflash verify --device cpu --quiet
