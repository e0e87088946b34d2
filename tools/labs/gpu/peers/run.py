#!/usr/bin/env python3
"""Times NCCL, that of PyTorch, and this transport by turns between two GPUs of this host:
    [RUNS=3] [RAILS=127.0.0.1,127.0.0.2,...] run.py COMMAND OF nvshmem-gpu-run

Prints a table of µs one way, medians, and ratios. P2P is off on both sides. NCCL goes over shared
memory, over sockets as they come, and over sockets with four threads of four sockets each. Ours are
puts with signal, and for 8 MiB puts with their quiet: over shm and tcp where PEs share their bounce
memory, and over tcp with one rail and four where they do not, as between hosts."""

import os
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = {8: "8B", 4096: "4KiB", 1 << 20: "1MiB", 8 << 20: "8MiB"}
RAILS = os.environ.get("RAILS", "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4")
APART = {"NVSHMEM_LIBFABRIC_DEBUG": "share_bounce=0"}
SOCKETS = {"NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}
TUNED = {**SOCKETS, "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}
WAYS = {
    "nccl_shm": ("NCCL, shared memory", None, {"NCCL_SHM_DISABLE": "0"}),
    "shm": ("ours, shm", "shm", {}),
    "nccl_socket": ("NCCL, sockets as they come", None, SOCKETS),
    "tcp": ("ours, tcp, bounce memory shared", "tcp", {}),
    "nccl_socket_tuned": ("NCCL, sockets, 4 threads by 4", None, TUNED),
    "tcp_apart": ("ours, tcp, nothing shared, one rail", "tcp", {**APART, "NVSHMEM_LIBFABRIC_DEVICES": RAILS.split(",")[0]}),
    "tcp_apart_4_rails": ("ours, tcp, nothing shared, four rails", "tcp", {**APART, "NVSHMEM_LIBFABRIC_DEVICES": RAILS}),
}
# Times of ours over times of NCCL: below 1 is better.
RATIOS = (("shm", "nccl_shm"), ("tcp", "nccl_socket"), ("tcp_apart", "nccl_socket"), ("tcp_apart_4_rails", "nccl_socket_tuned"))


def rank_of_job(rank, store):
    """A rank of NCCL's job: prints bytes and half of what there and back takes, in µs."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2, device_id=device)
    for size in SIZES:
        data = torch.full((size,), rank, dtype=torch.uint8, device=device)
        received = torch.empty_like(data)
        calls, times = 200 if size <= 4096 else 40, []
        for count in [10] + 5 * [calls]:
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                for sender in (0, 1):
                    dist.send(data, 1 - rank) if sender == rank else dist.recv(received, sender)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) / count * 1e6)
        assert bool((received == 1 - rank).all()), "what has come is what the other rank holds"
        if rank == 0:
            print(size, statistics.median(times[1:]) / 2, flush=True)
    dist.destroy_process_group()


def nccl(env):
    with tempfile.TemporaryDirectory() as directory:
        env = {**os.environ, "NCCL_P2P_DISABLE": "1", **env}
        command = lambda rank: [sys.executable, __file__, "rank", str(rank), f"{directory}/store"]
        ranks = [subprocess.Popen(command(rank), env=env, stdout=subprocess.PIPE, text=True) for rank in (0, 1)]
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
        assert not any(rank.returncode for rank in ranks), "NCCL has failed: see above"
    return {int(size): float(us) for size, us in (line.split() for line in said[0].splitlines())}


def ours(provider, env, command):
    def said(program, arguments):
        command_of = [*command, "--only", program, "--args", arguments, "--mps", "off", "--providers", provider]
        run = subprocess.run(command_of, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert run.returncode == 0, run.stdout
        return [line.split() for line in run.stdout.splitlines()]

    # The row of a size in the last table whose title has these words.
    def row(lines, title, size):
        titled = lambda at: title in " ".join(next(words for words in lines[at::-1] if words[:1] == ["#"]))
        return float([words[2] for at, words in enumerate(lines) if words[:2] == [str(size), "block"] and titled(at)][-1])

    large, small = said("put", "--min 1048576 --max 8388608 --iters 40"), said("put-signal", "--min 8 --max 4096 --iters 100")
    times = {size: row(small, "put with signal", size) for size in (8, 4096)}
    return {**times, 1 << 20: row(large, "put with signal", 1 << 20), 8 << 20: row(large, "one put and its quiet", 8 << 20)}


def main(arguments):
    if arguments[:1] == ["rank"]:
        return rank_of_job(int(arguments[1]), arguments[2])
    if len(subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()) < 2:
        sys.exit("it takes two GPUs")
    times = {name: [] for name in WAYS}
    for _ in range(int(os.environ.get("RUNS", "3"))):
        for name, (_, provider, env) in WAYS.items():
            times[name].append(ours(provider, env, arguments) if provider else nccl(env))
    median = lambda name, size: statistics.median(run[size] for run in times[name])
    print(f"{'µs one way, medians':<44}" + "".join(f"{size:>12}" for size in SIZES.values()))
    for name, (text, _, _) in WAYS.items():
        print(f"{text:<44}" + "".join(f"{median(name, size):12.1f}" for size in SIZES))
    for name, size in ((name, size) for name in WAYS for size in SIZES):
        print(f"MEASURE gpu_peers_{name}_{SIZES[size]}_us {median(name, size):.1f} us")
    for one, other, size in ((*pair, size) for pair in RATIOS for size in SIZES):
        print(f"MEASURE gpu_peers_{one}_over_{other}_{SIZES[size]} {median(one, size) / median(other, size):.2f} ratio")


if __name__ == "__main__":
    main(sys.argv[1:])
