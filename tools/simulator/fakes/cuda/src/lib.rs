//! A CUDA driver without a GPU, loaded under the name of NVIDIA's: `libcuda.so.1`.
//!
//! Device memory is mapped `PROT_NONE` at the address that a program gets, and a second time where
//! only the copy engine looks. Whoever else touches it, a system call or a library among them,
//! faults at once: what comes out right was moved by the driver's copies.
//!
//! It has the part of the driver API that the plugin and its tests call, written from CUDA's public
//! documentation of names, arguments and semantics. Where the documentation leaves room it takes
//! the stricter way:
//!
//! - A call that needs a current context fails with `CUDA_ERROR_INVALID_CONTEXT` on a thread that
//!   has bound none.
//! - A copy that leaves the allocation it starts in fails with `CUDA_ERROR_INVALID_VALUE`, also
//!   where the next allocation is mapped right behind.
//! - Memory of the VMM interface belongs to no context: `CU_POINTER_ATTRIBUTE_CONTEXT` is null.
//! - `cuMemFree`, `cuMemFreeHost`, `cuMemHostUnregister`, `cuModuleLoadData`, `cuModuleUnload`,
//!   `cuCtxSetLimit` and the first launch of a kernel that is loaded lazily wait until their
//!   context is idle, as long as that takes. No other call on the context returns meanwhile, copies
//!   and queries of the transport's among them. Other contexts are not held up, but for copies of
//!   memory that belongs to the one that waits (`cuMemAlloc`, managed memory) and for
//!   `cuCtxCreate`.
//! - While a kernel of another context runs, copies to the device of less than 32 KiB take 2.4 ms,
//!   or less than 28 where several are given in one call: they are done by kernels, too, and
//!   contexts take turns. Copies of two rows and more do not.
//!   Memory that belongs to a context is copied in that one.
//! - Copies that are given in one call are executed in no order: the last one is first.
//! - Words that streams are to store in managed memory or in a pool's are refused.
//! - The legacy stream and the blocking streams wait for one another. A copy from or to memory that
//!   is not page-locked returns when it is done.
//! - While a stream is captured in the global mode, calls that could disturb it fail on threads of
//!   that mode, and spoil the capture.
//! - A copy that takes time brings some bytes at the end of that time: its first half, or 4 bytes
//!   of its first or last word, if it goes to the host.
//! - `cuCtxDestroy` waits while a kernel runs in any context of the device. To lock pages takes
//!   time.
//! - What is made in a context ends with it: streams, memory of the device, page-locked memory.
//! - New memory of a device is not zero.
//! - The first copy that fails on the device leaves its context unusable: from then on every call
//!   on it returns the same error.
//!
//! Every stream is a thread, which executes what was enqueued in order. A device has a copy engine
//! for each direction, which all its contexts share, for one copy at a time.
//!
//! # Environment
//!
//! | variable | default | |
//! |---|---|---|
//! | `FAKE_CUDA_COPY_NS` | 0 | nanoseconds that each copy takes at least |
//! | `FAKE_CUDA_BYTE_PS` | 0 | picoseconds on top for each byte |
//! | `FAKE_CUDA_PINNED_LIMIT` | none | bytes that `cuMemHostAlloc` gives out per device |
//! | `FAKE_CUDA_DMA_BUF` | 2 | 0: no dma-buf export; 1: none by PCIe, as drivers before CUDA 12.8; 3: the CPU may map them, as of 13.3 |
//! | `FAKE_CUDA_VMM` | 1 | 0: no memory of the VMM interface; 2: though the device is said to have it |
//! | `FAKE_CUDA_STREAM_OPS` | 1 | 0: no `cuStreamWriteValue64` |
//! | `FAKE_CUDA_TOGETHER` | 1 | what `cuMemcpyBatchAsync` answers: 0 not supported, 1 it copies, else that code |
//! | `FAKE_CUDA_VERSION` | 13000 | `cuDriverGetVersion`; below that `cuMemcpyBatchAsync` has the form of CUDA 12.8 |
//! | `FAKE_CUDA_ROWS` | 1 | 0: copies of rows to the device are done by kernels as well |
//! | `FAKE_CUDA_KERNELS` | 1 | 0: also the kernels that it knows are refused |
//! | `FAKE_CUDA_MPS` | 0 | 1: kernels of several contexts run at once, as under CUDA's multi-process service |
//! | `FAKE_CUDA_REGISTERS` | 1 | 0: `cuMemHostRegister` is not supported |
//! | `FAKE_CUDA_CONTEXTS` | 1 | 0: `cuCtxCreate` finds no memory |
//! | `FAKE_CUDA_LIMITS` | 1 | 0: `cuCtxSetLimit` is refused |
//! | `CUDA_MODULE_LOADING` | `LAZY` | what `cuModuleGetLoadingMode` answers |
//! | `FAKE_CUDA_HOST_WRITES` | 1 | words of the host that streams are to set: 0 refused, 2 taken and never set |
//! | `FAKE_CUDA_WRITES_ORDERING` | 100 | `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING` |
//!
//! The functions `fake_cuda_*` in `calls/extras.rs` do the same for one device while a program
//! runs, and put a kernel that spins on a stream.

mod calls;
mod state;
