//! Link arguments of the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in [
        "-Wl,-soname,libnccl-rma-nvshmem-libfabric.so",
        // NCCL unloads its plugins. This one must stay: the thread-local destructors of threads
        // that have used it run when those threads end, perhaps later.
        "-Wl,-z,nodelete",
        "-Wl,-z,relro",
        "-Wl,-z,now",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    // What is instrumented has symbols that the program with the sanitizer provides.
    let has = |cfg| std::env::var_os(cfg).is_some();
    if !has("CARGO_CFG_FUZZING") && !has("CARGO_CFG_SANITIZE") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
    }
}
