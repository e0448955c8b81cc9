# syntax=docker/dockerfile:1
# The image of both components: one binary and the libraries it is linked to, no shell, no package manager, no root.

FROM rust:1.95-slim AS build
ARG TARGETPLATFORM
WORKDIR /src
COPY . .
# The caches outlive the layer: a changed source file compiles what changed, not every dependency again. One build
# folder a platform, since they would overwrite each other's.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target,id=belay-target-${TARGETPLATFORM} \
    cargo build --release --locked --package belay --bin belay \
    && install -D target/release/belay /rootfs/usr/local/bin/belay

# What `ldd` names is what the dynamic loader will look for. The certificates are for API servers with a public name;
# inside a cluster the ServiceAccount brings its own.
RUN set -eu; \
    for file in $(ldd /rootfs/usr/local/bin/belay | grep -o '/[^ ]*') /etc/ssl/certs/ca-certificates.crt; do \
        cp --parents --dereference "$file" /rootfs; \
    done

FROM scratch
LABEL org.opencontainers.image.title="belay" \
      org.opencontainers.image.description="Holds a pod in place until it is safe to leave" \
      org.opencontainers.image.source="https://github.com/belay-dev/belay" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /rootfs /
# By number, so that `runAsNonRoot` can be checked without /etc/passwd.
USER 65532:65532
EXPOSE 8443 8080
ENTRYPOINT ["/usr/local/bin/belay"]
