//! Link arguments of the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in [
        // The thread-local texts of nlf_strerror may outlive a user's dlclose.
        "-Wl,-z,nodelete",
        "-Wl,-z,defs",
        "-Wl,-z,relro",
        "-Wl,-z,now",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
