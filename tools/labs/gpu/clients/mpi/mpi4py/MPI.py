"""COMM_WORLD by files beside the one that NVSHMEM_RUN_UID_FILE names, all PEs on one host."""

import os
import time

COMM_TYPE_SHARED = 1


class Comm:
    def __init__(self):
        self._sent = 0

    def Get_rank(self):
        return int(os.environ["NVSHMEM_RUN_RANK"])

    def Get_size(self):
        return int(os.environ["NVSHMEM_RUN_SIZE"])

    def Split_type(self, kind):
        return self

    def Bcast(self, array, root=0):
        self._sent += 1
        path = f"{os.environ['NVSHMEM_RUN_UID_FILE']}.bcast-{self._sent}"
        if self.Get_rank() == root:
            with open(path + ".part", "wb") as file:
                file.write(memoryview(array).cast("B"))
            os.rename(path + ".part", path)
            return
        deadline = time.monotonic() + 60
        while not os.path.exists(path):
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {root} has not written {path}")
            time.sleep(0.01)
        with open(path, "rb") as file:
            memoryview(array).cast("B")[:] = file.read()


COMM_WORLD = Comm()
