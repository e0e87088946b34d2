//! Link arguments of the stand-in.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in [
        // A process that has it loaded has a CUDA driver by the name that everybody asks for.
        "-Wl,-soname,libcuda.so.1",
        // Its copy engines are threads.
        "-Wl,-z,nodelete",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
