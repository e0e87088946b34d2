"""Becomes the tool, by exec: signals and exit status are the tool's own, and those of the program that it starts."""

import os
import sys

from nvshmem_libfabric import BIN


def main():
    tool = BIN / "nvshmem-libfabric"
    try:
        os.execv(tool, [tool.name, *sys.argv[1:]])
    except OSError as error:
        print(f"nvshmem-libfabric: {tool}: {error.strerror}", file=sys.stderr)
        print("hint: install the package anew: pip install --force-reinstall nvshmem-libfabric", file=sys.stderr)
        return 126


if __name__ == "__main__":
    sys.exit(main())
