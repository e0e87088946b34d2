"""A Python process as a PE: its rank, how it finds the others, and how it says what became of it.

`nvshmem-gpu-run` starts it with NVSHMEM_RUN_RANK, NVSHMEM_RUN_SIZE and NVSHMEM_RUN_UID_FILE, which
cuda/nvshmem/bootstrap.h describes, and takes it to have worked when every PE prints `RESULT <program> pe <n> ok`. Where a package is missing, the line says so,
and the program counts as skipped.
"""

import os
import signal
import subprocess
import sys
import time
import traceback

RANK = int(os.environ["NVSHMEM_RUN_RANK"])
SIZE = int(os.environ["NVSHMEM_RUN_SIZE"])
# A path in a fresh directory that all PEs of the job see.
SHARED = os.environ["NVSHMEM_RUN_UID_FILE"]

PROGRAM = os.path.basename(sys.argv[0])

# Seconds in which what was sent is there, on a machine that may be busy.
PATIENCE = 60

# The PEs of a job are on one host.
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def from_first(make):
    """Bytes that PE 0 makes and all have."""
    if RANK == 0:
        text = make()
        with open(SHARED + ".part", "wb") as file:
            file.write(text)
        os.rename(SHARED + ".part", SHARED)
        return text
    deadline = time.monotonic() + PATIENCE
    while not os.path.exists(SHARED):
        if time.monotonic() > deadline:
            raise TimeoutError(f"PE 0 has not written {SHARED}")
        time.sleep(0.01)
    with open(SHARED, "rb") as file:
        return file.read()


def arrives(what, is_there):
    """Waits for data of which nothing but its arrival tells: a put without a signal."""
    deadline = time.monotonic() + PATIENCE
    while not is_there():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} has not come")
        time.sleep(0.001)


class Missing(ImportError):
    """What a program lacks here, other than a package."""


def named(variable, file):
    """The directory that a variable names, with this file in it."""
    directory = os.environ.get(variable)
    if not directory:
        raise Missing(f"{variable} names no directory")
    if not os.path.exists(os.path.join(directory, file)):
        raise Missing(f"no {file} in {variable}, {directory}")
    return os.path.abspath(directory)


def suite(runs, seconds=400):
    """Runs programs of others, each a title, its command and its environment, one after another.

    Each is ended with all that it has started after `seconds`, or TESTS_SECONDS.
    """
    limit = int(os.environ.get("TESTS_SECONDS", seconds))
    failed = []
    for title, command, env in runs:
        run = subprocess.Popen(command, env=env, start_new_session=True)
        try:
            status = run.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            status = f"not ended in {limit} s"
        print(f"{title}: {'ok' if status == 0 else f'failed, {status}'}", flush=True)
        if status != 0:
            failed.append(title)
    assert runs, "none of them is there"
    assert not failed, ", ".join(failed)


def done():
    """Says that all data was right."""
    print(f"RESULT {PROGRAM} pe {RANK} ok", flush=True)


def _told(kind, error, trace):
    traceback.print_exception(kind, error, trace)
    missing = isinstance(error, ImportError)
    what = f"skipped: {error}" if missing else f"FAILED: {kind.__name__}: {error}"
    print(f"RESULT {PROGRAM} pe {RANK} {what}".splitlines()[0], flush=True)
    # Not by exit handlers, which may wait for PEs that wait for this one.
    os._exit(0 if missing else 1)


# Whatever ends a program is told to the launcher: so this module is imported first.
sys.excepthook = _told
