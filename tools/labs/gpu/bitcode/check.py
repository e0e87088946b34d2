#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kernels of Triton and Numba that are linked to the device API, without a GPU:
    check.py BASE
where BASE.bc and BASE.ptx are what build.sh has built. A compiler that is not installed is skipped.
Each kernel has to come out as code of the GPU, with what it calls and little else."""

import os
import sys
import tempfile

BASE = sys.argv[1]
# Bytes of code: the kernels here have a tenth of it, the whole library ten times as much.
LARGEST = 300_000


def of_triton():
    """A put by a block, from a kernel of Triton's, for Hopper."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.language import core

    @core.extern
    def put_block(ctx, dst, src, size, pe, flags, _semantic=None):
        words, half = core.dtype("uint64"), core.dtype("int32")
        forms = {(words, words, words, words, half, half): ("nlf_put_nbi_block", half)}
        arguments = [ctx, dst, src, size, pe, flags]
        return core.extern_elementwise("", "", arguments, forms, is_pure=False, _semantic=_semantic)

    def kernel(ctx, dst, src, size, pe, out):
        tl.store(out, put_block(ctx, dst, src, size, pe, 0))

    # The compiler reads its source from a file and its names from a module.
    kernel.__globals__.update(put_block=put_block, tl=tl)
    types = {"ctx": "u64", "dst": "u64", "src": "u64", "size": "u64", "pe": "i32", "out": "*i32"}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        source = ASTSource(triton.jit(kernel), types)
        options = {"extern_libs": {"nvshmem_libfabric": f"{BASE}.bc"}}
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return triton.__version__, made.asm["cubin"]


def of_numba():
    """A put by a block, from a kernel of Numba's, for Hopper."""
    import numba_cuda
    from cuda.core import Linker, LinkerOptions, ObjectCode
    from numba import cuda

    form = "int32(uint64, uint64, uint64, uint64, int32, uint32)"
    put_block = cuda.declare_device("nlf_put_nbi_block", form, abi="c")

    def kernel(ctx, dst, src, size, pe, out):
        out[0] = put_block(ctx, dst, src, size, pe, 0)

    types = "void(uint64, uint64, uint64, uint64, int32, int32[::1])"
    text, _ = cuda.compile(kernel, types, cc=(9, 0), output="ptx", abi="numba", device=False)
    with open(f"{BASE}.ptx", "rb") as library:
        parts = [ObjectCode.from_ptx(text.encode()), ObjectCode.from_ptx(library.read())]
    made = Linker(*parts, options=LinkerOptions(arch="sm_90")).link("cubin")
    return numba_cuda.__version__, made.code


failed = 0
for name, linked in (("Triton", of_triton), ("Numba", of_numba)):
    try:
        version, code = linked()
    except ImportError as missing:
        print(f"SKIPPED the device API in {name}: {missing}")
        continue
    except Exception as error:  # pylint: disable=broad-except
        print(f"{name}: {type(error).__name__}: {error}")
        failed += 1
        continue
    is_code = code[:4] == b"\x7fELF" and len(code) < LARGEST
    failed += not is_code
    print(f"{name} {version}: {len(code)} bytes of code{'' if is_code else ', which are too many, or none'}")
sys.exit(failed > 0)
