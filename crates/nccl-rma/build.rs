//! How NCCL's plugin is linked.

#[path = "../../packaging/link.rs"]
mod link;

fn main() {
    link::plugin("libnccl-rma-nvshmem-libfabric.so");
}
