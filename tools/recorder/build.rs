//! How the recorder is linked: as the plugin, see its build script.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in [
        "-Wl,-soname,nvshmem_transport_recorder.so.0",
        "-Wl,-z,nodelete",
        "-Wl,-z,relro",
        "-Wl,-z,now",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
