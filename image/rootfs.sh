#!/bin/sh
# Lays out what the image holds: rootfs.sh PROGRAM FOLDER. Besides the program only certificates, for API servers and
# registries with a public name; inside a cluster the ServiceAccount brings its own.
set -eu
program="$1"
rootfs="$2"

install -D --mode=0755 "$program" "$rootfs/usr/local/bin/belay"
install -D --mode=0644 /etc/ssl/certs/ca-certificates.crt "$rootfs/etc/ssl/certs/ca-certificates.crt"
# Times of files are part of an image's bytes.
find "$rootfs" -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH:-0}" {} +
