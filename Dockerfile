# Two targets:
#   docker build --target trainer -t edge-hpcr .             the app and the learner
#   docker build --target device -t edge-hpcr-device .       classifies only: no torch, nothing of the learner

# The trainer's CUDA comes with the wheels of torch and ONNX Runtime, the driver from the host (`docker run --gpus all`):
# a CUDA image below them would hold the same gigabytes a second time, in a version that nothing here is pinned to, and
# without Python 3.11. Whoever must have one names it: --build-arg BASE=nvidia/cuda:13.1.1-base-ubuntu24.04
ARG BASE=python:3.11-slim


FROM python:3.11-slim AS device

RUN apt-get update \
    && apt-get install --yes --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 10001 edge \
    && install --directory --owner edge /srv/edge-hpcr /cache
USER edge
WORKDIR /srv/edge-hpcr

# A cache of the wheels would double the image.
ENV PIP_NO_CACHE_DIR=1
# Only what the installation reads, so that a change to the code does not install again.
COPY --chown=edge Makefile ./
COPY --chown=edge export/requirements.txt export/
RUN make install-device
ENV PATH=/srv/edge-hpcr/.venv-device/bin:$PATH

COPY --chown=edge LICENSE ./
COPY --chown=edge edge_hpcr/__init__.py edge_hpcr/
COPY --chown=edge edge_hpcr/common edge_hpcr/common
COPY --chown=edge edge_hpcr/stream edge_hpcr/stream
COPY --chown=edge export/__init__.py export/runtime.py export/
COPY --chown=edge export/device export/device
# Models of a server are kept here: the device starts without its server, too.
ENV XDG_CACHE_HOME=/cache
VOLUME /cache
# 200 while frames are answered; a camera is given a minute to come back. Whoever opens --http to others keeps its port 8090.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener\nbuild_opener(ProxyHandler({})).open('http://127.0.0.1:8090/healthz', timeout=8)"]
ENTRYPOINT ["python", "-m", "export.runtime", "--http", "8090"]
CMD ["--models", "/models", "--source", "0", "--wait"]


FROM ${BASE} AS trainer

# An image of NVIDIA's has no Python.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends make $(command -v python3 > /dev/null || echo python3 python3-venv) \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 10001 edge \
    && install --directory --owner edge /srv/edge-hpcr /data
USER edge
WORKDIR /srv/edge-hpcr

ENV PIP_NO_CACHE_DIR=1
COPY --chown=edge Makefile requirements.txt ./
RUN make install
ENV PATH=/srv/edge-hpcr/.venv/bin:$PATH

COPY --chown=edge LICENSE ./
COPY --chown=edge edge_hpcr edge_hpcr
RUN make weights
COPY --chown=edge export export
COPY --chown=edge app app
# What a CUDA image would have set: the driver comes in also where `--gpus` is not what asks for it.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENV EDGE_HPCR_DATA=/data/datasets
VOLUME /data
EXPOSE 7860
# No proxy: one that the environment names would be asked for 127.0.0.1 too. The second address is that of --phone.
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s \
    CMD ["python", "-c", "import ssl\nfrom urllib.request import HTTPSHandler, ProxyHandler, build_opener\nask = build_opener(ProxyHandler({}), HTTPSHandler(context=ssl._create_unverified_context())).open\ntry:\n    ask('http://127.0.0.1:7860/healthz', timeout=8)\nexcept Exception:\n    ask('https://127.0.0.1:7860/healthz', timeout=8)"]
# The app listens to others only with a password: EDGE_HPCR_AUTH holds user:password, or --auth names a file.
ENTRYPOINT ["python"]
CMD ["-m", "app", "--workspace", "/data/workspace", "--host", "0.0.0.0"]
