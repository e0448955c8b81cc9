#!/bin/sh
# Builds the program of the image: one static file that says nothing of where it was built. Prints where it is.
#
# Static, so that the image holds nothing else that would have to be updated. glibc's static resolver reads
# /etc/resolv.conf and /etc/hosts, which Kubernetes puts into every container; only plug-ins of nsswitch.conf would need
# more. `--target` keeps the flags from build scripts and macros, which cannot be static.
set -eu
cd "$(dirname "$0")/.."

# Without symbolic links and dots, as the compilers name them.
sources="$(pwd -P)"
cargo_home="$(realpath -m "${CARGO_HOME:-$HOME/.cargo}")"
target_folder="$(realpath -m "${CARGO_TARGET_DIR:-target}")"
platform="$(rustc -vV | sed -n 's/^host: //p')"

# Of the compilers' paths none may stand in the program: they say where it was built, and nothing else.
RUSTFLAGS="-C target-feature=+crt-static"
CFLAGS=""
for path in "$sources=/belay" "$target_folder=/belay/target" "$cargo_home=/cargo"; do
    RUSTFLAGS="$RUSTFLAGS --remap-path-prefix=$path"
    CFLAGS="$CFLAGS -ffile-prefix-map=$path"
done
export RUSTFLAGS CFLAGS
cargo build --release --locked --package belay --bin belay --target "$platform" --target-dir "$target_folder" >&2
echo "$target_folder/$platform/release/belay"
