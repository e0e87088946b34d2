//! Link arguments of a plugin: a part of build scripts.

/// Has the library of the package linked as one that programs open by this name and never close.
pub(crate) fn plugin(soname: &str) {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in [
        &format!("-Wl,-soname,{soname}"),
        // NVSHMEM up to 3.6 and NCCL unload their plugins. These must stay: the thread-local
        // destructors of threads that have used them run when those threads end, perhaps later.
        "-Wl,-z,nodelete",
        "-Wl,-z,relro",
        "-Wl,-z,now",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    // They are loaded with RTLD_NOW. A symbol that nothing provides fails the link here, not the
    // load there. What is instrumented has symbols that the fuzzer or the program with the
    // sanitizer provides.
    let has = |cfg| std::env::var_os(cfg).is_some();
    if !has("CARGO_CFG_FUZZING") && !has("CARGO_CFG_SANITIZE") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
    }
}
