# The torch wheels carry CUDA themselves and the driver comes from the host (`docker run --gpus all`),
# so a CUDA base image would only hold the same libraries a second time.
FROM python:3.11-slim AS trainer

RUN apt-get update \
    && apt-get install --yes --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home edge \
    && install --directory --owner edge /srv/edge-hpcr /data
USER edge
WORKDIR /srv/edge-hpcr

# A cache of the wheels would double the image.
ENV PIP_NO_CACHE_DIR=1
# Only what the installation reads, so that a change to the code does not install again.
COPY --chown=edge Makefile requirements.txt ./
RUN make install

COPY --chown=edge . .
ENV EDGE_HPCR_DATA=/data
VOLUME /data
ENTRYPOINT ["make"]
CMD ["run"]
