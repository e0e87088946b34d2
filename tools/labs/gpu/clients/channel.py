"""The device channel of a Python process: the host functions that the programs beside it use.

The library, and its device functions for compilers, are in ../lib, or where NLF_LIB says.
"""

import pe  # first, as it tells of what the others lack

import ctypes
import os
import socket

LIB = os.environ.get("NLF_LIB") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib")
ON_DEVICE = 1


def device_functions(end):
    """The file of device functions: ".bc" or ".ptx"."""
    path = os.path.join(LIB, "libnvshmem_libfabric_device" + end)
    if not os.path.exists(path):
        raise ImportError(f"no {path}: make gpu-kit builds it where there is a clang")
    return path


class Words:
    """64-bit words of symmetric device memory, as PyTorch, CuPy and Numba take arrays of others."""

    def __init__(self, address, count):
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": (count,), "typestr": "<i8", "strides": None, "version": 3,
        }


class Channel:
    """A channel between all PEs of the job, on the device whose context is current."""

    def __init__(self):
        path = os.path.join(LIB, "libnvshmem_libfabric_channel.so")
        if not os.path.exists(path):
            raise ImportError(f"no {path}")
        self._library = ctypes.CDLL(path)
        self._library.nlf_strerror.restype = ctypes.c_char_p
        for name in ("nlf_get_context", "nlf_alloc_on"):
            getattr(self._library, name).restype = ctypes.c_void_p
        self._library.nlf_alloc_on.argtypes = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_size_t)

        port, job = pe.from_first(self._meeting).split()
        self._channel = ctypes.c_void_p()
        address = b"127.0.0.1:" + port
        job = ctypes.c_uint64(int(job))
        self._checked(self._library.nlf_init_tcp(
            ctypes.byref(self._channel), address, pe.RANK, pe.SIZE, job, None))
        self._library.nlf_get_context.argtypes = (ctypes.c_void_p,)
        self.context = self._library.nlf_get_context(self._channel)

    @staticmethod
    def _meeting():
        """A port of PE 0 that is free, and the number of the job."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            return b"%d %d" % (server.getsockname()[1], int.from_bytes(os.urandom(8), "little"))

    def _checked(self, status):
        if status != 0:
            raise RuntimeError(self._library.nlf_strerror().decode())

    def words(self, count):
        """Zeroed words at every PE. Collective."""
        address = self._library.nlf_alloc_on(self._channel, ON_DEVICE, count * 8)
        if not address:
            raise RuntimeError(self._library.nlf_strerror().decode())
        return Words(address, count)

    def barrier(self):
        """Returns when all PEs have called it, and none has had an error."""
        self._checked(self._library.nlf_barrier(self._channel))
        self._checked(self._library.nlf_check(self._channel))

    def close(self):
        """Ends the channel, and with it its memory. Collective."""
        self._checked(self._library.nlf_finalize(self._channel))
