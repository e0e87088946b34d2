//! Compiles `cuda/kernels/kernels.cu` with nvcc, if there is one, into a fatbin that the crate has
//! in it.
//!
//! The compiler is the first of: `NVCC`, which may be set and empty to go without; `nvcc` in the
//! PATH; `bin/nvcc` in `CUDA_HOME` or `CUDA_PATH`; what `scripts/cuda-compiler.sh` has fetched.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What `scripts/cuda-compiler.sh` fetches. It touches the build script then, so that this is run
/// again.
const FETCHED: &str = ".deps/nvshmem/cuda/bin/nvcc";

/// Compute capabilities with code of their own. Newer devices compile the PTX of the last.
const ARCHS: [&str; 3] = ["80", "90", "100"];

pub(crate) fn build() {
    for path in ["cuda/kernels", "include/nvshmem_libfabric_ring.h"] {
        println!("cargo::rerun-if-changed={path}");
    }
    for header in ["device", "primitives", "push", "wait"] {
        println!("cargo::rerun-if-changed=cuda/nvshmem_libfabric_{header}.cuh");
    }
    for variable in ["NVCC", "CUDA_HOME", "CUDA_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let (image, built) = match compiler() {
        None => (None, String::from("without kernels: no nvcc in PATH, CUDA_HOME or CUDA_PATH")),
        Some(nvcc) => match compile(&nvcc, &out) {
            Ok((image, archs)) => (Some(image), format!("by {} for {archs}", version(&nvcc))),
            Err(reason) => {
                // The plugin works without them, so its build goes on.
                println!("cargo::warning=kernels are not compiled: {}", nvcc.display());
                for line in reason.lines().take(20) {
                    println!("cargo::warning={line}");
                }
                (None, format!("without kernels: {} failed", version(&nvcc)))
            }
        },
    };
    let image = match image {
        Some(path) => format!("Some(include_bytes!({path:?}))"),
        None => String::from("None"),
    };
    let source = format!(
        "/// The kernels as a fatbin; None when the crate was built without a compiler for them.\n\
         pub const IMAGE: Option<&[u8]> = {image};\n\n\
         /// Which compiler made them for which devices, or why there are none.\n\
         pub const BUILT: &str = {built:?};\n"
    );
    fs::write(out.join("kernels.rs"), source).expect("OUT_DIR can be written");
}

fn compiler() -> Option<PathBuf> {
    if let Some(named) = env::var_os("NVCC") {
        return (!named.is_empty()).then(|| PathBuf::from(named));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = env::split_paths(&path).map(|directory| directory.join("nvcc"));
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os);
    let in_homes = homes.map(|home| Path::new(&home).join("bin/nvcc"));
    let fetched = Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).join(FETCHED);
    in_path.chain(in_homes).chain([fetched]).find(|nvcc| nvcc.is_file())
}

/// Compiles, and returns where the fatbin is and what it is for; or the compiler's own words.
fn compile(nvcc: &Path, out: &Path) -> Result<(PathBuf, String), String> {
    let known = run(Command::new(nvcc).arg("--list-gpu-code"))?;
    let knows = |arch: &&str| known.lines().any(|line| line.trim() == format!("sm_{arch}"));
    let mut archs: Vec<&str> = ARCHS.into_iter().filter(knows).collect();
    // Nobody measures with a build for lints or tests: that it compiles is enough.
    if env::var("OPT_LEVEL").as_deref() != Ok("3") {
        archs.retain(|arch| *arch == "90");
    }
    let Some(last) = archs.last() else {
        return Err(format!("it knows none of the devices {ARCHS:?}"));
    };
    let image = out.join("kernels.fatbin");
    let mut command = Command::new(nvcc);
    command.args(["--fatbin", "-std=c++14", "-O3", "--threads", "2", "-Xfatbin=-compress-all"]);
    command.args(["-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra"]);
    for arch in &archs {
        let code =
            if arch == last { format!("[sm_{arch},compute_{arch}]") } else { format!("sm_{arch}") };
        command.arg("-gencode").arg(format!("arch=compute_{arch},code={code}"));
    }
    // CUDA from pip keeps its C++ core libraries where nvcc does not look.
    if let Some(home) = nvcc.parent().and_then(Path::parent) {
        let libraries = home.join("include/cccl");
        if libraries.is_dir() {
            command.arg("-I").arg(libraries);
        }
    }
    command.args(["-Iinclude", "cuda/kernels/kernels.cu", "-o"]).arg(&image);
    run(&mut command)?;
    Ok((image, format!("sm_{}", archs.join(", sm_"))))
}

/// `nvcc V13.0.88`, for people.
fn version(nvcc: &Path) -> String {
    let told = run(Command::new(nvcc).arg("--version")).unwrap_or_default();
    let version = told.split_whitespace().find(|word| {
        word.strip_prefix('V').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    format!("nvcc {}", version.unwrap_or("of unknown version"))
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("cannot be started: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{}: {}{}", output.status, text(&output.stderr), text(&output.stdout)))
    }
}
