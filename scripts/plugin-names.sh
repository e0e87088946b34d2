#!/usr/bin/env bash
# Prints the names that the plugin is installed under, one a line: a file for each major version of
# NVSHMEM's plugin interface that crates/nvshmem-abi/layouts.json describes.
set -euo pipefail

sed -nE 's/^ *"soname": "(.*)",$/\1/p' "$(dirname "$0")/../crates/nvshmem-abi/layouts.json" | sort -uV
