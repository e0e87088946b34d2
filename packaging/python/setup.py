"""The wheel: what `make install` installs, as a package of Python. scripts/package.sh puts the files in, and says in the
environment what is Cargo.toml's to say (the version) and the files' (for which systems they are)."""

import os
from pathlib import Path

from setuptools import Distribution, setup

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel


class ForOneProcessor(Distribution):
    """The files are machine code."""

    def has_ext_modules(self):
        return True


class ForAnyPython(bdist_wheel):
    """But no file is for one version of Python."""

    def get_tag(self):
        return "py3", "none", os.environ["NVSHMEM_LIBFABRIC_WHEEL_PLATFORM"]


setup(
    name="nvshmem-libfabric",
    version=os.environ["NVSHMEM_LIBFABRIC_VERSION"],
    description="NVSHMEM's remote transport over libfabric: plugin files for NVSHMEM 3.1 to 3.8, device channel and tool",
    long_description=Path("README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICES"],
    classifiers=["Environment :: GPU :: NVIDIA CUDA", "Operating System :: POSIX :: Linux", "Programming Language :: Rust"],
    python_requires=">=3.8",
    packages=["nvshmem_libfabric"],
    package_data={"nvshmem_libfabric": ["bin/*", "lib/*", "include/*"]},
    entry_points={"console_scripts": ["nvshmem-libfabric = nvshmem_libfabric.__main__:main"]},
    distclass=ForOneProcessor,
    cmdclass={"bdist_wheel": ForAnyPython},
)
