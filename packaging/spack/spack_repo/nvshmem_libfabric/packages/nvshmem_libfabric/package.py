# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class NvshmemLibfabric(Package):
    """NVSHMEM's remote transport over libfabric: plugin files for NVSHMEM 3.1 to 3.8, the library of the device channel,
    and the tool nvshmem-libfabric, which starts programs with them."""

    # The tree that this recipe lies in. A copy elsewhere names the repository here.
    git = str(Path(__file__).resolve().parents[6])

    license("Apache-2.0", checked_by="its authors")

    version("main", branch="main")
    version("0.1.0", tag="v0.1.0")

    depends_on("c", type="build")
    depends_on("rust@1.85:", type="build")
    depends_on("gmake", type="build")
    depends_on("binutils", type="build")
    depends_on("patchelf", type="build")
    # Loaded when the transport starts, so that nothing is linked to it.
    depends_on("libfabric@1.17:", type="run")

    def install(self, spec, prefix):
        make("install", f"PREFIX={prefix}")

    def setup_run_environment(self, env):
        env.set("NVSHMEM_LIBFABRIC_LIBRARY", join_path(self.spec["libfabric"].prefix.lib, "libfabric.so.1"))
