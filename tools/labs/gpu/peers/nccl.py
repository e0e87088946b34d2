"""NCCL between the GPUs of this host, as PyTorch has it: what a send and its receive take, one way,
and with "all-to-all N" what an all-to-all of N GPUs takes.

Starts its other processes itself. Prints a line for each size: bytes, of an all-to-all those from each rank
to each, and microseconds, the median of the rounds; of messages there and back, halved. Which way NCCL goes
is said by its own variables (NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_SOCKET_NTHREADS and so on).
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = {"there-and-back": (8, 4096, 1 << 20, 8 << 20), "all-to-all": (8, 4096, 65536, 1 << 20)}
ROUNDS = 5


def calls_of_a_round(size):
    """Fewer of long ones."""
    return 200 if size <= 4096 else 40


def timed(torch, size, call):
    """Microseconds of a call, the median of the rounds."""
    for _ in range(10):
        call()
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls_of_a_round(size)):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / calls_of_a_round(size) * 1e6)
    return statistics.median(times)


def rank_of_job(what, rank, size_of_job, store):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=size_of_job, device_id=device)
    for size in SIZES[what]:
        data = torch.full((size * size_of_job if what == "all-to-all" else size,), rank, dtype=torch.uint8, device=device)
        received = torch.empty_like(data)

        def there_and_back():
            if rank == 0:
                dist.send(data, 1)
                dist.recv(received, 1)
            else:
                dist.recv(received, 0)
                dist.send(data, 0)

        def all_to_all():
            dist.all_to_all_single(received, data)

        if what == "all-to-all":
            time = timed(torch, size, all_to_all)
            blocks = received.view(size_of_job, size)
            assert all(bool((blocks[of] == of).all()) for of in range(size_of_job)), "each rank's block holds its number"
        else:
            time = timed(torch, size, there_and_back) / 2
            assert bool((received == 1 - rank).all()), "what has come is what the other rank holds"
        if rank == 0:
            print(size, f"{time:.1f}", flush=True)
    dist.destroy_process_group()


def main(arguments):
    if len(arguments) == 4:
        what, rank, size_of_job, store = arguments
        return rank_of_job(what, int(rank), int(size_of_job), store)
    what, size_of_job = arguments if arguments else ("there-and-back", "2")
    with tempfile.TemporaryDirectory() as directory:
        store = os.path.join(directory, "store")
        start = lambda rank: subprocess.Popen([sys.executable, __file__, what, str(rank), size_of_job, store])
        ranks = [start(rank) for rank in range(int(size_of_job))]
        try:
            return max(abs(rank.wait(timeout=120)) for rank in ranks)
        finally:
            for rank in ranks:
                rank.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
