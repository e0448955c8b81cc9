# syntax=docker/dockerfile:1
# The image of both components: one static program and nothing else to run: no shell, no package manager, no root.

# A tag moves; for a release, give the digest that was looked at: --build-arg RUST_IMAGE=rust@sha256:… (docs/release.md).
ARG RUST_IMAGE=rust:1.95-slim-bookworm

FROM ${RUST_IMAGE} AS build
ARG TARGETPLATFORM
# The times of the image's files, in seconds since 1970; for a release, the commit's.
ARG SOURCE_DATE_EPOCH=0
WORKDIR /src
COPY . .
# The caches outlive the layer: a changed source file compiles what changed, not every dependency again. One build
# folder a platform, since they would overwrite each other's.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target,id=belay-target-${TARGETPLATFORM} \
    image/rootfs.sh "$(image/build.sh)" /rootfs

FROM scratch
LABEL org.opencontainers.image.title="belay" \
      org.opencontainers.image.description="Holds a pod in place until it is safe to leave" \
      org.opencontainers.image.source="https://github.com/belay-dev/belay" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /rootfs /
# By number, so that `runAsNonRoot` can be checked without /etc/passwd.
USER 65532:65532
# Freed memory goes back at once. Else what a list of the cluster needed for a moment stays until a thread that freed some
# has more to do: 72 MiB instead of 42 with 10,000 pods.
ENV MIMALLOC_PURGE_DELAY=0
EXPOSE 8443 8080
ENTRYPOINT ["/usr/local/bin/belay"]
