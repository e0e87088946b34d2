"""NCCL between two GPUs of this host, as PyTorch has it: what a send and its receive take, one way.

Starts its second process itself. Prints a line for each size: bytes, and microseconds, the median of the
rounds, of messages there and back, halved. Which way NCCL goes is said by its own variables
(NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_SOCKET_NTHREADS and so on).
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = (8, 4096, 1 << 20, 8 << 20)
ROUNDS = 5
# Messages of a round: fewer of long ones.
MESSAGES = {size: 200 if size <= 4096 else 40 for size in SIZES}


def pe(rank, store):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2, device_id=device)
    for size in SIZES:
        data = torch.full((size,), rank, dtype=torch.uint8, device=device)

        def there_and_back():
            if rank == 0:
                dist.send(data, 1)
                dist.recv(data, 1)
            else:
                dist.recv(data, 0)
                dist.send(data, 0)

        for _ in range(10):
            there_and_back()
        times = []
        for _ in range(ROUNDS):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(MESSAGES[size]):
                there_and_back()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) / MESSAGES[size] / 2 * 1e6)
        if rank == 0:
            assert int(data[0]) == 0 and int(data[-1]) == 0, "what has come back is what was sent"
            print(size, f"{statistics.median(times):.1f}", flush=True)
    dist.destroy_process_group()


def main():
    if len(sys.argv) == 3:
        return pe(int(sys.argv[1]), sys.argv[2])
    with tempfile.TemporaryDirectory() as directory:
        store = os.path.join(directory, "store")
        other = subprocess.Popen([sys.executable, __file__, "1", store], stdout=subprocess.DEVNULL)
        try:
            pe(0, store)
            return other.wait(timeout=60)
        finally:
            other.kill()


if __name__ == "__main__":
    sys.exit(main())
