//! How the plugin is linked, and the kernels of the device channel.

#[path = "cuda/kernels/build.rs"]
mod kernels;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in [
        // NVSHMEM asks for `nvshmem_transport_libfabric.so.N`, N being the major version of its
        // plugin interface. One binary serves them all: `make install` copies it once per N and
        // puts that N here.
        "-Wl,-soname,nvshmem_transport_libfabric.so.0",
        // NVSHMEM up to 3.6 unloads its plugins. This one must stay: the thread-local
        // destructors of threads that have used it run when those threads end, perhaps later.
        "-Wl,-z,nodelete",
        "-Wl,-z,relro",
        "-Wl,-z,now",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    // NVSHMEM loads it with RTLD_NOW. A symbol that nothing provides fails the link here, not the
    // load there. What is instrumented has symbols that the fuzzer or the program with the
    // sanitizer provides.
    let has = |cfg| std::env::var_os(cfg).is_some();
    if !has("CARGO_CFG_FUZZING") && !has("CARGO_CFG_SANITIZE") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
    }
    kernels::build();
}
