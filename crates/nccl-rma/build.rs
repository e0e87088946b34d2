//! Link arguments of the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in [
        "-Wl,-soname,libnccl-rma-nvshmem-libfabric.so",
        // NCCL unloads its plugins. This one must stay: the thread-local destructors of threads
        // that have used it run when those threads end, perhaps later.
        "-Wl,-z,nodelete",
        "-Wl,-z,defs",
        "-Wl,-z,relro",
        "-Wl,-z,now",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
