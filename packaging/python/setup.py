"""The wheel: what `make install` installs, as a package of Python. scripts/package.sh puts the files in, and says in the
environment what is not this file's to say: the version, who made it and for which systems."""

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


home_page = os.environ["NVSHMEM_LIBFABRIC_HOME_PAGE"]
# The manual and completions.
share = [(str(file.parent), [str(file)]) for file in sorted(Path("share").rglob("*")) if file.is_file()]

setup(
    name="nvshmem-libfabric",
    version=os.environ["NVSHMEM_LIBFABRIC_VERSION"],
    description="NVSHMEM's remote transport over libfabric: plugin files for NVSHMEM 3.1 to 3.8, device channel and tool",
    long_description=Path("README.md").read_text(),
    long_description_content_type="text/markdown",
    author=os.environ["DEBFULLNAME"],
    author_email=os.environ["DEBEMAIL"],
    **({"url": home_page} if home_page else {}),
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICES"],
    classifiers=["Environment :: GPU :: NVIDIA CUDA", "Operating System :: POSIX :: Linux", "Programming Language :: Rust"],
    python_requires=">=3.8",
    packages=["nvshmem_libfabric"],
    package_data={"nvshmem_libfabric": ["bin/*", "lib/*", "lib/pkgconfig/*", "lib/cmake/*/*", "include/*"]},
    data_files=share,
    entry_points={"console_scripts": ["nvshmem-libfabric = nvshmem_libfabric.__main__:main"]},
    distclass=ForOneProcessor,
    cmdclass={"bdist_wheel": ForAnyPython},
)
