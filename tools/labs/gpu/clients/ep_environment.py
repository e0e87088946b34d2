"""What clients of nccl.ep have in common: the environment that it takes its compiler and headers from."""

import pe

import os
import shutil
import socket
from pathlib import Path


def environment(own_host):
    """Sets what nccl.ep takes from it: compiler, headers of the NCCL that is loaded, the host's name."""
    with open("/proc/self/maps") as maps:
        loaded = {line.split()[-1] for line in maps if "/libnccl.so" in line}
    assert len(loaded) == 1, f"not one NCCL: {loaded}"
    root, nvcc = Path(*loaded).parents[1], shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(nvcc) or not (root / "include/nccl_device.h").exists():
        raise pe.Missing(f"nvcc, or headers in {root}, for the kernels of nccl.ep")
    os.environ.setdefault("NCCL_HOME", str(root))
    os.environ.setdefault("CUDA_HOME", str(Path(nvcc).resolve().parents[1]))
    os.environ.setdefault("NCCL_EP_TIMEOUT_MS", "20000")
    host = socket.gethostname()
    if own_host and not host.endswith(f"-rank-{pe.RANK}"):
        os.environ.setdefault("NCCL_HOSTID", host)
        try:
            os.unshare(os.CLONE_NEWUTS)
            socket.sethostname(f"{host[:40]}-rank-{pe.RANK}")
        except (AttributeError, OSError) as error:
            raise pe.Missing(f"a host name for each rank: {error}") from error
