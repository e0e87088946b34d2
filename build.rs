//! How the plugin is linked, and the kernels of the device channel.

#[path = "cuda/kernels/build.rs"]
mod kernels;
#[path = "packaging/link.rs"]
mod link;

fn main() {
    // NVSHMEM asks for `nvshmem_transport_libfabric.so.N`, N being the major version of its plugin
    // interface. One binary serves them all: `make install` copies it once per N and puts that N
    // here.
    link::plugin("nvshmem_transport_libfabric.so.0");
    kernels::build();
}
