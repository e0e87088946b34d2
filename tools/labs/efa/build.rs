//! Link arguments of the stand-in.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The device's thread runs in it for as long as the process does, also when libfabric lets go
    // of the provider.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
