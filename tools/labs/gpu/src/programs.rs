//! The programs of others that can be run, and how each is.

use crate::case::Gpus;

/// NVSHMEM's perftests that make sense with a remote transport and two PEs on one GPU, and
/// arguments with which each takes some seconds. The options are those of its 3.x sources: `-b` and
/// `-e` the smallest and the largest size, `-n` and `-w` rounds measured and before, `-c` and `-t`
/// blocks and threads, `-a` the atomic.
pub(crate) const PERFTESTS: &[(&str, &str)] = &[
    ("shmem_put_bw", "-n 50 -w 5 -c 4 -t 1024 -b 1024 -e 8M"),
    ("shmem_get_bw", "-n 50 -w 5 -c 4 -t 1024 -b 1024 -e 8M"),
    ("shmem_put_latency", "-n 100 -w 10 -t 1024 -e 64K"),
    ("shmem_get_latency", "-n 100 -w 10 -t 1024 -e 64K"),
    ("shmem_p_latency", "-n 20 -w 2 -t 512 -e 4K"),
    ("shmem_p_bw", "-n 20 -w 2 -c 1 -t 256 -e 4K"),
    ("shmem_g_latency", "-n 10 -w 2 -t 128 -e 1K"),
    ("shmem_g_bw", "-n 10 -w 2 -c 1 -t 128 -e 1K"),
    ("shmem_p_ping_pong_latency", "-n 100 -w 10 -e 4K"),
    ("shmem_put_signal_ping_pong_latency", "-n 100 -w 10 -e 1M"),
    ("shmem_put_ping_pong_latency", "-n 100 -w 10 -e 1M"),
    ("shmem_signal_ping_pong_latency", "-n 100 -w 10"),
    ("shmem_put_atomic_ping_pong_latency", "-n 100 -w 10 -e 64K"),
    ("shmem_atomic_ping_pong_latency", "-n 100 -w 10"),
    ("shmem_atomic_latency", "-n 50 -w 5 -a inc"),
    ("shmem_atomic_latency", "-n 50 -w 5 -a fetch_add"),
    ("shmem_atomic_latency", "-n 50 -w 5 -a compare_swap"),
    ("shmem_atomic_bw", "-n 10 -w 2 -c 1 -t 256 -e 4096 -a inc"),
    ("bw", "-n 20 -w 5 -e 4M"),
    ("latency", "-n 20 -w 5 -e 64K"),
    ("barrier_latency", "-n 100 -w 10"),
    ("sync_latency", "-n 100 -w 10"),
    ("alltoall_latency", "-n 20 -w 2 -b 1 -e 64K"),
    ("bcast_latency", "-n 20 -w 2 -b 1 -e 64K"),
    ("fcollect_latency", "-n 20 -w 2 -b 1 -e 64K"),
    ("reducescatter_latency", "-n 20 -w 2 -b 1 -e 4K"),
    ("reduction_latency", "-n 20 -w 2 -b 1 -e 64K"),
    ("barrier_on_stream", "-n 100 -w 10"),
    ("barrier_all_on_stream", "-n 100 -w 10"),
    ("sync_on_stream", "-n 100 -w 10"),
    ("sync_all_on_stream", "-n 100 -w 10"),
    ("alltoall_on_stream", "-n 20 -w 2 -b 1 -e 1M"),
    ("broadcast_on_stream", "-n 20 -w 2 -b 1 -e 1M"),
    ("fcollect_on_stream", "-n 20 -w 2 -b 1 -e 1M"),
    ("reducescatter_on_stream", "-n 20 -w 2 -b 1 -e 64K"),
    ("reduction_on_stream", "-n 20 -w 2 -b 1 -e 1M"),
];

/// An example of NVSHMEM's, and how it is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Example {
    pub(crate) program: &'static str,
    pub(crate) args: &'static str,
    pub(crate) pes: u32,
    pub(crate) says: &'static str,
    pub(crate) gpus: Gpus,
}

pub(crate) const fn example(
    program: &'static str,
    args: &'static str,
    says: &'static str,
) -> Example {
    Example { program, args, pes: 2, says, gpus: Gpus::Any }
}

/// NVSHMEM's public examples that need no MPI. `put-block` is not among them: a PE looks at its
/// data while its peer may still be putting it.
pub(crate) const EXAMPLES: &[Example] = &[
    example("collective-launch", "", "results on device [{pe}] is {sum}"),
    example("dev-guide-ring", "", "{pe}: received message {before}"),
    example("on-stream", "", "[{pe} of {pes}] run complete"),
    example("ring-bcast", "", ""),
    // It creates its events before it chooses its device, so that on a device other than the first
    // CUDA refuses to record them.
    Example { gpus: Gpus::One, ..example("ring-reduce", "", "") },
    example("thread-group", "", "[{pe} of {pes}] run complete"),
    Example { gpus: Gpus::Own, ..example("user-buffer", "", "No errors found") },
    // It takes the number of PEs for that of its experts, 16: with fewer it asks for words of PEs
    // that are not there, and NVSHMEM ends with a fault. Without '-c' its kernels read memory of
    // malloc, which few machines allow.
    Example { pes: 16, gpus: Gpus::Own, ..example("moe_shuffle", "-c -b 8", "Rank: {pe} Time: ") },
];

/// The all-to-all of a mixture of experts in pplx-kernels: its test, which wants four PEs, and its
/// bench. Between PEs of a host they also try their way by memory that both see.
pub(crate) const PPLX: &[Example] = &[
    Example { pes: 4, ..example("pplx_test_all_to_all", "", "Starting the broadcast test") },
    example("pplx_bench_all_to_all", "", "Inter-Node BF16"),
];

/// Seconds after which a program is killed, where the options do not say: suites of others take
/// longer than our own programs. Triton alone compiles a minute for each collective of PyTorch's.
pub(crate) fn deadline(program: &str) -> u64 {
    match program {
        "pytorch-tests" => 3600,
        "nvshmem4py-tests" | "deepep-tests" | "nccl-ep" | "flashinfer-ep" => 900,
        _ => 120,
    }
}

/// Programs of NCCL's RMA and GIN: our own, NCCL's examples, nccl-tests' and those in `clients`.
pub(crate) const NCCL_PROGRAMS: &[Example] = &[
    example("gin", "", ""),
    example("put-signal", "", ""),
    example("communicators", "", ""),
    example("gin-times", "", ""),
    Example { pes: 3, ..example("rank-loss", "", "") },
    Example { pes: 3, ..example("rank-loss", "--shrink 1", "") },
    Example { gpus: Gpus::Own, ..example("nccl-ep", "", "") },
    Example { gpus: Gpus::Own, ..example("flashinfer-ep", "", "") },
    example("torch-nccl-symmetric", "", ""),
    example("02_alltoall_gin", "", "Pure GIN AlltoAll result: PASSED"),
    example("03_alltoall_hybrid", "", "Hybrid AlltoAll result: PASSED"),
    Example {
        pes: 1,
        gpus: Gpus::Two,
        ..example(
            "alltoall_perf",
            "-t 2 -g 1 -b 1K -e 16M -f 4 -D 3 -R 2 -n 20 -w 5",
            "# Out of bounds values : 0 OK",
        )
    },
];
