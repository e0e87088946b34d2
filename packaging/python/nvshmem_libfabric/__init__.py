"""Where this package has its files.

BIN has the tool, LIB the plugin files and the device channel's library, INCLUDE its headers:

    cc -I "$(python3 -c 'import nvshmem_libfabric as n; print(n.INCLUDE)')" ...
"""

from importlib.metadata import version
from pathlib import Path

__version__ = version("nvshmem-libfabric")
BIN = Path(__file__).resolve().parent / "bin"
LIB = BIN.parent / "lib"
INCLUDE = BIN.parent / "include"
