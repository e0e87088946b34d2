//! Compiles the device header and the kernels' bodies with the host's C++ compiler.

fn main() {
    for path in
        ["cpp/producer.cpp", "../../../../cuda", "../../../../include/nvshmem_libfabric_ring.h"]
    {
        println!("cargo::rerun-if-changed={path}");
    }
    cc::Build::new()
        .cpp(true)
        // What the header promises to get by with.
        .std("c++14")
        .file("cpp/producer.cpp")
        .include("../../../../include")
        .include("../../../../cuda")
        .opt_level(2)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        // Nothing of it is used, and programs with this code run where it may be missing.
        .cpp_link_stdlib(None)
        .compile("channel_producer");
}
