//! What `scripts/package.sh` makes, installed as its users install it. `make fresh` tries what is
//! installed: its checks, its self-test, and programs of the channel.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libtest_mimic::{Failed, Trial};
use test_support::built;
use test_support::needs::{self, Need};

use crate::bed::{
    Case, MadeUp, RELEASES, Scratch, TOOL, executable, file_name, good, json, program, root, says,
};

pub(crate) fn trials() -> Vec<Trial> {
    if !test_support::full() {
        return Vec::new();
    }
    let pip = "import pip, venv; assert tuple(map(int, pip.__version__.split('.')[:2])) >= (22, 3)";
    vec![
        needs::trial("packages::wheel", has("python3", &["-c", pip]), wheel),
        needs::trial("packages::pkg_config", has("pkg-config", &["--version"]), pkg_config),
        needs::trial("packages::cmake", has("cmake", &["--version"]), cmake),
        needs::trial("packages::spack", has("python3", &["-V"]), spack),
    ]
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn has(needed: &str, arguments: &[&str]) -> Need<()> {
    let works = good(program(needed).args(arguments));
    works.map(drop).map_err(|_| format!("{needed} is missing, or too old: make deps"))
}

pub(crate) fn make(target: &str, prefix: &Path) -> Command {
    static STAGE: OnceLock<PathBuf> = OnceLock::new();
    let stage = STAGE.get_or_init(|| {
        let libraries = [
            "libnvshmem_transport_libfabric.so",
            "libnccl_rma_nvshmem_libfabric.so",
            "libnvshmem_libfabric_channel.so",
        ];
        let built = built::directory("built-to-install", &libraries.map(|name| (name, name)));
        let stage = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stage");
        let _ = fs::remove_dir_all(&stage);
        let release = stage.join("release");
        fs::create_dir_all(&release).expect("directories");
        for name in libraries {
            symlink(built.join(name), release.join(name)).expect("a link");
        }
        symlink(TOOL, release.join("nvshmem-libfabric")).expect("a link");
        stage
    });
    let mut make = program("make");
    make.arg("--directory").arg(root()).arg(target).arg("CARGO=true");
    make.arg(format!("TARGET={}", stage.display())).arg(format!("PREFIX={}", prefix.display()));
    make
}

pub(crate) fn prefix() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package-prefix");
        let _ = fs::remove_dir_all(&prefix);
        good(&mut make("install", &prefix)).expect("it is installed");
        prefix
    })
}

fn package(umask: &str, scratch: &Scratch) -> Result<PathBuf, Failed> {
    let out = scratch.join("packages");
    // What was made before goes, in a directory where things are built.
    scratch.write("CACHEDIR.TAG", "");
    scratch.write("packages/SHA256SUMS", "of an older version");
    scratch.write("packages/older.whl", "");
    let mut make = program("sh");
    make.args(["-c", "umask $0 && exec \"$@\"", umask]).arg(root().join("scripts/package.sh"));
    make.env("NVSHMEM_LIBFABRIC_HOME_PAGE", "https://somewhere/");
    good(make.args([prefix(), &out]).arg("wheel"))?;
    let notes = fs::read_to_string(out.join("RELEASE-NOTES.md"))?;
    assert!(notes.starts_with(&format!("# nvshmem-libfabric {VERSION}")), "{notes}");
    let files = fs::read_dir(&out)?.map(|entry| Ok(entry?.path()));
    let mut files = files.collect::<std::io::Result<Vec<PathBuf>>>()?;
    files.retain(|file| !file.ends_with("SHA256SUMS") && !file.ends_with("RELEASE-NOTES.md"));
    assert!(files.len() == 1, "one package: {files:?}");
    Ok(files.remove(0))
}

/// Checks that a tool that is installed finds the files it came with, in a directory.
pub(crate) fn has_all_files(tool: &mut Command, directory: &Path) -> Case {
    let info = json(tool.args(["info", "--json", "--only", "plugins"]), 0)?;
    let found = &info["plugins"];
    assert!(found["directory"] == fs::canonicalize(directory)?.display().to_string(), "{info:#}");
    let files = found["files"].as_array().cloned().unwrap_or_default();
    let numbers: Vec<_> = files.iter().filter_map(|file| file["number"].as_u64()).collect();
    let mut known: Vec<_> = RELEASES.iter().map(|(_, number)| u64::from(*number)).collect();
    known.dedup();
    assert!(numbers == known, "{info:#}");
    let mut all = files.iter().chain([&found["nccl"]]);
    assert!(all.all(|file| file["version"] == VERSION), "{info:#}");
    Ok(())
}

const EXAMPLE: &str = "crates/channel-c/tests/example.c";

fn moved(scratch: &Scratch) -> Result<PathBuf, Failed> {
    let moved = scratch.join("moved");
    good(program("cp").arg("-a").arg(prefix()).arg(&moved))?;
    Ok(moved)
}

fn pkg_config((): ()) -> Case {
    let scratch = Scratch::new();
    let page = include_str!("../../../../docs/install.md");
    let block = page.split("```sh\n").find(|block| block.contains("pkg-config --cflags"));
    let block = block.and_then(|block| block.split("```").next()).unwrap_or_default();
    fs::copy(root().join(EXAMPLE), scratch.join("example.c"))?;
    for prefix in [prefix(), &moved(&scratch)?] {
        let block = block.replace("$HOME/nvshmem-libfabric", &prefix.display().to_string());
        let version = "pkg-config --modversion nvshmem_libfabric_channel && ./example";
        let mut run = program("sh");
        run.args(["-ec", &format!("{block}\n{version}")]).current_dir(&*scratch);
        says(run.env("NVSHMEM_LIBFABRIC_PROVIDER", "shm"), 0, &[&format!("{VERSION}\n")])?;
    }
    Ok(())
}

fn cmake((): ()) -> Case {
    let scratch = Scratch::new();
    let moved = moved(&scratch)?;
    let configure = |wanted: &str| {
        let lists = format!(
            "cmake_minimum_required(VERSION 3.13)\nproject(example C)\n\
             find_package(nvshmem_libfabric {wanted} REQUIRED)\n\
             add_executable(example {}/{EXAMPLE})\n\
             target_compile_options(example PRIVATE -std=gnu11)\n\
             target_link_libraries(example PRIVATE nvshmem_libfabric::channel)\n",
            root().display()
        );
        scratch.write(&format!("{wanted}/CMakeLists.txt"), lists);
        let at = scratch.join(wanted);
        let mut cmake = program("cmake");
        cmake.arg("-S").arg(&at).arg("-B").arg(&at);
        cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", moved.display()));
        cmake
    };
    let minor = VERSION.rsplit_once('.').map_or(VERSION, |(minor, _)| minor);
    good(&mut configure(minor))?;
    good(program("cmake").arg("--build").arg(scratch.join(minor)))?;
    let example = scratch.join(minor).join("example");
    good(program(example).env("NVSHMEM_LIBFABRIC_PROVIDER", "shm"))?;
    good(&mut configure(VERSION))?;
    for wanted in ["0.0.9", "99.0", &format!("{VERSION}1")] {
        says(&mut configure(wanted), 1, &["compatible"])?;
    }
    Ok(())
}

fn wheel((): ()) -> Case {
    let scratch = Scratch::new();
    let wheel = package("022", &scratch)?;
    let elsewhere = Scratch::new();
    let same = fs::read(&wheel)? == fs::read(package("077", &elsewhere)?)?;
    assert!(same, "it depends on the umask");
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let tag = format!("nvshmem_libfabric-{VERSION}-py3-none-manylinux_2_");
    let system = format!("_{}.whl", std::env::consts::ARCH);
    assert!(name.starts_with(&tag) && name.ends_with(&system), "{name}");
    let environment = scratch.join("environment");
    let bin = environment.join("bin");
    let (python, tool) = (bin.join("python"), bin.join("nvshmem-libfabric"));
    good(program("python3").args(["-m", "venv", "--without-pip"]).arg(&environment))?;
    let pip = |arguments: &[&str]| {
        let mut pip = program("python3");
        pip.args(["-m", "pip", "--disable-pip-version-check", "--python"]).arg(&python);
        pip.args(arguments);
        pip
    };
    good(pip(&["install", "--quiet", "--no-index", "--no-deps"]).arg(&wheel))?;

    // By both of its names, from a shell that is not in the environment.
    let version = format!("nvshmem-libfabric {VERSION}\n");
    says(program(&tool).arg("-V"), 0, &[&version])?;
    says(program(&python).args(["-m", "nvshmem_libfabric", "-V"]), 0, &[&version])?;
    let says_of = |line: &str, texts: &[&str]| says(program(&python).args(["-c", line]), 0, texts);
    says_of("import nvshmem_libfabric as n; print(n.__version__)", &[VERSION])?;
    let metadata = "import importlib.metadata as m\n\
                    for field in m.metadata('nvshmem-libfabric').items(): print(*field, sep=': ')";
    let fields = ["Author: Someone", "Author-email: someone@somewhere", "https://somewhere/"];
    says_of(metadata, &fields)?;
    let places = "import nvshmem_libfabric as n; print(n.BIN, n.LIB, n.INCLUDE, sep='\\n')";
    let places = says_of(places, &[])?;
    let places: Vec<&Path> = places.lines().map(Path::new).collect();
    let [package, lib, include] = places[..] else { return Err(format!("{places:?}").into()) };
    assert!(include.join("nvshmem_libfabric.h").is_file(), "{places:?}");
    for page in [
        "man/man1/nvshmem-libfabric-run.1",
        "bash-completion/completions/nvshmem-libfabric",
        "fish/vendor_completions.d/nvshmem-libfabric.fish",
        "zsh/site-functions/_nvshmem-libfabric",
    ] {
        assert!(environment.join("share").join(page).is_file(), "no {page}");
    }
    assert!(!environment.join("share/nvshmem-libfabric").exists(), "a package has no record");
    has_all_files(&mut program(&tool), lib)?;

    // NVSHMEM among the packages of the environment, as PyTorch brings it.
    let site = package.ancestors().nth(2).ok_or("site-packages")?;
    let made = MadeUp::new(site, "nvidia/nvshmem", "3.7.2", 6);
    let info = json(program(&tool).args(["info", "--json", "--only", "nvshmem"]), 0)?;
    let first = &info["nvshmem"][0];
    assert!(first["library"] == made.library().display().to_string(), "{info:#}");
    assert!(first["found_by"][0] == "the packages beside this program", "{info:#}");
    // `run`, as it is documented: the launcher and its Python are found in the environment.
    let line =
        format!("#!{}\nimport os, sys\nos.execv(sys.argv[1], sys.argv[1:])\n", python.display());
    executable(&bin.join("torchrun"), &line);
    made.program(&scratch.join("program"));
    let mut run = program(&tool);
    run.args(["run", "--", "torchrun"]).arg(scratch.join("program")).arg("7");
    run.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    says(&mut run, 7, &[&format!("loaded {}\n", lib.join(file_name(6)).display())])?;

    good(&mut pip(&["uninstall", "--quiet", "--yes", "nvshmem-libfabric"]))?;
    assert!(!tool.exists() && !package.exists() && !lib.exists(), "it is gone");
    Ok(())
}

/// Spack itself is not to be had from package registries, so its words have stand-ins here, which
/// note what is said.
fn spack((): ()) -> Case {
    let recipe =
        "packaging/spack/spack_repo/nvshmem_libfabric/packages/nvshmem_libfabric/package.py";
    let stand_ins = root().join("tools/nvshmem-libfabric/tests/data/spack.py");
    let found = json(program("python3").arg(stand_ins).arg(root().join(recipe)), 0)?;
    let said = found["said"].as_array().cloned().unwrap_or_default();
    for (word, first) in [
        ("version", VERSION),
        ("license", "Apache-2.0"),
        ("depends_on", "rust@1.85:"),
        ("depends_on", "libfabric@1.17:"),
        ("depends_on", "patchelf"),
        ("make", "PREFIX=/prefix"),
        ("set", "NVSHMEM_LIBFABRIC_LIBRARY"),
    ] {
        let mut told = said.iter().filter(|told| told[0] == word);
        let begins =
            |text: &serde_json::Value| text.as_str().is_some_and(|it| it.starts_with(first));
        let has = told.any(|told| told[1].as_array().is_some_and(|all| all.iter().any(begins)));
        assert!(has, "{word} {first}: {found:#}");
    }
    assert!(found["git"] == root().display().to_string(), "the tree that it lies in: {found:#}");
    Ok(())
}
