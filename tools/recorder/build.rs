//! How the recorder is linked.

#[path = "../../packaging/link.rs"]
mod link;

fn main() {
    link::plugin("nvshmem_transport_recorder.so.0");
}
