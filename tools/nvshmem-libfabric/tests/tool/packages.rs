//! What `scripts/package.sh` makes, installed as its users install it, and tried.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libtest_mimic::{Failed, Trial};
use serde_json::Value;
use test_support::built;
use test_support::needs::{self, Need};

use crate::bed::{MadeUp, Scratch, TOOL, expect, file_name, good, json};

pub(crate) fn trials() -> Vec<Trial> {
    if !test_support::full() {
        return Vec::new();
    }
    vec![
        needs::trial("packages::wheel_in_fresh_environment", pip(), wheel),
        needs::trial("packages::deb_in_empty_tree", has("dpkg"), deb),
        needs::trial("packages::channel_by_pkg_config", has("pkg-config"), by_pkg_config),
        needs::trial("packages::channel_by_cmake", has("cmake"), by_cmake),
        needs::trial("packages::spack_recipe", python("import sys"), spack),
    ]
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn root() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).expect("the source")
}

fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let known = name.to_string_lossy();
        let others =
            ["NVSHMEM_", "FI_", "FAKE_CUDA_", "CUDA_", "LD_", "PYTHON", "VIRTUAL_ENV", "PIP_"];
        if others.iter().any(|prefix| known.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command
}

fn python(line: &str) -> Need<()> {
    let output = command("python3").args(["-c", line]).output();
    let output = output.map_err(|error| format!("no python3: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("python3 does not take `{line}`: make deps"))
}

fn pip() -> Need<()> {
    python("import pip, venv; assert tuple(map(int, pip.__version__.split('.')[:2])) >= (22, 3)")
}

fn has(program: &str) -> Need<()> {
    let found = command(program).arg("--version").output();
    found.map(drop).map_err(|error| format!("no {program} here: {error}"))
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
    let mut make = command("make");
    make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    make.arg("--directory").arg(root()).arg(target).arg("CARGO=true");
    make.arg(format!("TARGET={}", stage.display())).arg(format!("PREFIX={}", prefix.display()));
    make
}

/// What `make install` leaves in a prefix. Made once.
pub(crate) fn prefix() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package-prefix");
        let _ = fs::remove_dir_all(&prefix);
        good(&mut make("install", &prefix)).expect("it is installed");
        prefix
    })
}

fn package(kind: &str, umask: &str, scratch: &Scratch) -> Result<PathBuf, Failed> {
    let out = scratch.at("packages");
    // What was made before goes.
    scratch.write("packages/SHA256SUMS", "of an older version");
    scratch.write("packages/older.whl", "");
    let mut make = command("sh");
    make.args(["-c", "umask $0 && exec \"$@\"", umask]).arg(root().join("scripts/package.sh"));
    make.env("DEBFULLNAME", "Someone").env("DEBEMAIL", "someone@somewhere");
    make.env("NVSHMEM_LIBFABRIC_HOME_PAGE", "https://somewhere/");
    good(make.args([prefix(), &out]).arg(kind))?;
    good(command("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&out))?;
    let notes = fs::read_to_string(out.join("RELEASE-NOTES.md"))?;
    let head = format!("# nvshmem-libfabric {VERSION}");
    expect(notes.starts_with(&head), || format!("release notes: {notes}"))?;
    let mut files: Vec<PathBuf> =
        fs::read_dir(&out)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    files.retain(|file| !file.ends_with("SHA256SUMS") && !file.ends_with("RELEASE-NOTES.md"));
    expect(files.len() == 1, || format!("one package: {files:?}"))?;
    Ok(files.remove(0))
}

fn has_all_files(info: &Value, directory: &Path) -> Result<(), Failed> {
    let directory = fs::canonicalize(directory)?;
    expect(info["plugins"]["directory"] == directory.display().to_string(), || {
        format!("{info:#}")
    })?;
    let files = info["plugins"]["files"].as_array().cloned().unwrap_or_default();
    let numbers: Vec<_> = files.iter().filter_map(|file| file["number"].as_u64()).collect();
    expect(numbers == [3, 4, 5, 6, 7], || format!("{info:#}"))?;
    expect(files.iter().all(|file| file["version"] == VERSION), || format!("{info:#}"))?;
    expect(info["plugins"]["nccl"]["version"] == VERSION, || format!("{info:#}"))
}

fn has_pages(directory: &Path, page: &str, zsh: &str) -> Result<(), Failed> {
    let share = directory.join("share");
    for name in [
        page,
        "bash-completion/completions/nvshmem-libfabric",
        &format!("{zsh}/_nvshmem-libfabric"),
        "fish/vendor_completions.d/nvshmem-libfabric.fish",
    ] {
        expect(share.join(name).is_file(), || format!("no {name} in {}", share.display()))?;
    }
    expect(!share.join("nvshmem-libfabric").exists(), || String::from("a package has no record"))
}

fn is_well(doctor: &mut Command) -> Result<(), Failed> {
    doctor.args(["doctor", "--json"]).env("NVSHMEM_LIBFABRIC_PROVIDER", "tcp");
    let diagnosis: Value = serde_json::from_slice(&doctor.output()?.stdout)?;
    let checks = diagnosis["checks"].as_array().cloned().unwrap_or_default();
    let files = checks.iter().find(|check| check["id"] == "plugin-files");
    expect(files.is_some_and(|check| check["verdict"] == "ok"), || format!("{diagnosis:#}"))
}

fn channel(scratch: &Scratch, include: &Path, lib: &Path) -> Result<(), Failed> {
    let program = scratch.at("channel");
    let mut compile = command("cc");
    compile.arg("-std=gnu11").arg(example()).arg("-o").arg(&program).arg("-I").arg(include);
    compile.arg("-L").arg(lib).arg("-lnvshmem_libfabric_channel");
    compile.arg(format!("-Wl,-rpath,{}", lib.display()));
    good(&mut compile)?;
    good(command(&program).env("NVSHMEM_LIBFABRIC_PROVIDER", "shm")).map(|_| ())
}

fn example() -> PathBuf {
    root().join("crates/channel-c/tests/example.c")
}

fn by_pkg_config((): ()) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let page = include_str!("../../../../docs/install.md");
    let block = page.split("```sh\n").find(|block| block.contains("pkg-config --cflags"));
    let block = block.and_then(|block| block.split("```").next()).unwrap_or_default();
    fs::copy(example(), scratch.at("example.c"))?;
    for prefix in [prefix(), &moved(&scratch)?] {
        let block = block.replace("$HOME/nvshmem-libfabric", &prefix.display().to_string());
        let script =
            format!("{block}\npkg-config --modversion nvshmem_libfabric_channel && ./example");
        let mut run = command("sh");
        run.args(["-ec", &script])
            .current_dir(scratch.path())
            .env("NVSHMEM_LIBFABRIC_PROVIDER", "shm");
        let said = good(&mut run)?;
        expect(said.lines().any(|line| line == VERSION), || said.clone())?;
    }
    Ok(())
}

fn moved(scratch: &Scratch) -> Result<PathBuf, Failed> {
    let moved = scratch.at("moved");
    good(command("cp").arg("-a").arg(prefix()).arg(&moved))?;
    Ok(moved)
}

fn by_cmake((): ()) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let moved = moved(&scratch)?;
    let minor = VERSION.rsplit_once('.').map_or(VERSION, |(minor, _)| minor);
    let build = |wanted: &str| {
        let name = format!("cmake-{wanted}");
        let lists = format!(
            "cmake_minimum_required(VERSION 3.13)\nproject(example C)\n\
             find_package(nvshmem_libfabric {wanted} REQUIRED)\n\
             add_executable(example {})\n\
             target_compile_options(example PRIVATE -std=gnu11)\n\
             target_link_libraries(example PRIVATE nvshmem_libfabric::channel)\n",
            example().display()
        );
        scratch.write(&format!("{name}/CMakeLists.txt"), &lists);
        let at = scratch.at(&name);
        let mut configure = command("cmake");
        configure.arg("-S").arg(&at).arg("-B").arg(&at);
        configure.arg(format!("-DCMAKE_PREFIX_PATH={}", moved.display()));
        good(&mut configure).map(|_| at)
    };
    let at = build(minor)?;
    good(command("cmake").arg("--build").arg(&at))?;
    good(command(at.join("example")).env("NVSHMEM_LIBFABRIC_PROVIDER", "shm"))?;
    build(VERSION)?;
    for wanted in ["0.0.9", "99.0", &format!("{VERSION}1")] {
        let refused = build(wanted).err().and_then(|error| error.message().map(str::to_owned));
        let said = refused.unwrap_or_default();
        expect(said.contains("compatible"), || format!("{wanted} is refused: {said}"))?;
    }
    Ok(())
}

fn wheel((): ()) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let wheel = package("wheel", "022", &scratch)?;
    let elsewhere = Scratch::new();
    let same = fs::read(&wheel)? == fs::read(package("wheel", "077", &elsewhere)?)?;
    expect(same, || String::from("it depends on the umask"))?;
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let tag = format!("nvshmem_libfabric-{VERSION}-py3-none-manylinux_2_");
    let system = format!("_{}.whl", std::env::consts::ARCH);
    expect(name.starts_with(&tag) && name.ends_with(&system), || name.clone())?;

    let environment = scratch.at("environment");
    good(command("python3").args(["-m", "venv", "--without-pip"]).arg(&environment))?;
    let python = environment.join("bin/python");
    let pip = |arguments: &[&str]| {
        let mut pip = command("python3");
        pip.args(["-m", "pip", "--disable-pip-version-check", "--python"]).arg(&python);
        pip.args(arguments);
        pip
    };
    good(pip(&["install", "--quiet", "--no-index", "--no-deps"]).arg(&wheel))?;

    // By both of its names, from a shell that is not in the environment.
    let tool = environment.join("bin/nvshmem-libfabric");
    let version = format!("nvshmem-libfabric {VERSION}\n");
    expect(good(command(&tool).arg("-V"))? == version, || String::from("its version"))?;
    let module = ["-m", "nvshmem_libfabric", "-V"];
    expect(good(command(&python).args(module))? == version, || String::from("its version"))?;
    let import = "import nvshmem_libfabric as n; print(n.__version__)";
    let version = good(command(&python).args(["-c", import]))?;
    expect(version.trim() == VERSION, || version.clone())?;
    let metadata = "import importlib.metadata as m; print(m.metadata('nvshmem-libfabric'))";
    let metadata = good(command(&python).args(["-c", metadata]))?;
    for field in ["Author: Someone", "Author-email: someone@somewhere", "https://somewhere/"] {
        expect(metadata.contains(field), || format!("{field} in {metadata}"))?;
    }
    has_pages(&environment, "man/man1/nvshmem-libfabric-run.1", "zsh/site-functions")?;
    let places = "import nvshmem_libfabric as n; print(n.BIN, n.LIB, n.INCLUDE, sep='\\n')";
    let places = good(command(&python).args(["-c", places]))?;
    let places: Vec<&Path> = places.lines().map(Path::new).collect();
    let [bin, lib, include] = places[..] else { return Err(format!("{places:?}").into()) };
    has_all_files(&json(command(&tool).args(["info", "--json", "--only", "plugins"]))?, lib)?;
    channel(&scratch, include, lib)?;

    // NVSHMEM among the packages of the environment, as PyTorch brings it.
    let site = bin.ancestors().nth(2).expect("site-packages");
    let name = site.strip_prefix(scratch.path())?.join("nvidia/nvshmem").display().to_string();
    let made = MadeUp::new(&scratch, &name, "3.7.2", 6);
    let info = json(command(&tool).args(["info", "--json", "--only", "nvshmem"]))?;
    let first = &info["nvshmem"][0];
    expect(first["library"] == made.library().display().to_string(), || format!("{info:#}"))?;
    expect(first["found_by"][0] == "the packages beside this program", || format!("{info:#}"))?;
    is_well(&mut command(&tool))?;

    // `run`, as it is documented: the launcher and its Python are found in the environment.
    let ours = lib.join(file_name(6));
    let program = scratch.at("program");
    made.program(&program);
    let script =
        format!("#!{}\nimport os, sys\nos.execv(sys.argv[1], sys.argv[1:])\n", python.display());
    scratch.executable("environment/bin/torchrun", &script);
    let path = format!("{}:/usr/bin:/bin", environment.join("bin").display());
    let line = |options: &[&str]| {
        let mut line = command(&tool);
        line.arg("run").args(options).args(["--", "torchrun"]).arg(&program).arg("7");
        line.env("PATH", &path);
        line
    };
    let said = good(&mut line(&["--dry-run"]))?;
    expect(said.contains(&format!("export LD_PRELOAD={}\n", ours.display())), || said.clone())?;
    let output = line(&[]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    expect(said.starts_with(&format!("loaded {}\n", ours.display())), || said.clone())?;
    expect(output.status.code() == Some(7), || format!("{output:?}"))?;

    let said = good(command(&tool).args(["selftest", "--provider", "shm"]))?;
    expect(said.ends_with("5 of 5 passed, with 2 PEs\n"), || said.clone())?;

    good(&mut pip(&["uninstall", "--quiet", "--yes", "nvshmem-libfabric"]))?;
    expect(!tool.exists() && !bin.exists() && !lib.exists(), || String::from("it is gone"))
}

fn deb((): ()) -> Result<(), Failed> {
    let scratch = Scratch::new();
    let deb = package("deb", "022", &scratch)?;
    let field = |name: &str| good(command("dpkg-deb").arg("--field").arg(&deb).arg(name));
    expect(field("Version")?.trim() == VERSION, || String::from("its version"))?;
    expect(field("Depends")?.starts_with("libc6 (>= 2."), || String::from("what it needs"))?;

    let tree = scratch.at("tree");
    for directory in ["info", "updates", "triggers"] {
        fs::create_dir_all(tree.join("var/lib/dpkg").join(directory))?;
    }
    scratch.write("tree/var/lib/dpkg/status", "");
    // In an empty tree nothing that it depends on is installed, and its files are of whoever runs
    // this.
    let dpkg = |arguments: &[&str]| {
        let mut dpkg = command("dpkg");
        dpkg.arg("--root").arg(&tree).args([
            "--log=/dev/null",
            "--force-depends",
            "--force-not-root",
        ]);
        dpkg.args(arguments);
        dpkg.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        dpkg
    };
    good(dpkg(&["--install"]).arg(&deb))?;
    good(&mut dpkg(&["--verify", "nvshmem-libfabric"]))?;
    let usr = tree.join("usr");
    let tool = || command(usr.join("bin/nvshmem-libfabric"));
    expect(good(tool().arg("-V"))?.contains(VERSION), || String::from("its version"))?;
    let lib = usr.join("lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let lib = fs::canonicalize(lib)?;
    has_all_files(&json(tool().args(["info", "--json", "--only", "plugins"]))?, &lib)?;
    channel(&scratch, &usr.join("include"), &lib)?;
    is_well(&mut tool())?;
    let made = MadeUp::new(&scratch, "nvshmem", "3.5.21", 4);
    let program = scratch.at("program");
    made.program(&program);
    let said = good(tool().args(["run", "--"]).arg(&program))?;
    let ours = format!("loaded {}\n", lib.join(file_name(4)).display());
    expect(said.starts_with(&ours), || said.clone())?;
    has_pages(&usr, "man/man1/nvshmem-libfabric-run.1.gz", "zsh/vendor-completions")?;
    expect(field("Homepage")?.trim() == "https://somewhere/", || String::from("its home page"))?;
    let copyright = fs::read_to_string(usr.join("share/doc/nvshmem-libfabric/copyright"))?;
    expect(copyright.contains("Apache License, version 2.0"), || copyright.clone())?;

    good(&mut dpkg(&["--purge", "nvshmem-libfabric"]))?;
    expect(!usr.exists(), || String::from("it is gone"))
}

/// Spack itself is not to be had from package registries, so its words have stand-ins here, which
/// note what is said.
fn spack((): ()) -> Result<(), Failed> {
    let recipe = root()
        .join("packaging/spack/spack_repo/nvshmem_libfabric/packages/nvshmem_libfabric/package.py");
    let stand_ins = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/spack.py");
    let found = json(command("python3").arg(stand_ins).arg(recipe))?;
    let said = found["said"].as_array().cloned().unwrap_or_default();
    let has = |word: &str, first: &str| {
        said.iter().any(|told| {
            let words = told[1].as_array().into_iter().flatten();
            told[0] == word && words.filter_map(Value::as_str).any(|text| text.starts_with(first))
        })
    };
    for (word, first) in [
        ("version", VERSION),
        ("license", "Apache-2.0"),
        ("depends_on", "rust@1.85:"),
        ("depends_on", "libfabric@1.17:"),
        ("depends_on", "patchelf"),
        ("make", "PREFIX=/prefix"),
        ("set", "NVSHMEM_LIBFABRIC_LIBRARY"),
    ] {
        expect(has(word, first), || format!("{word} {first}: {found:#}"))?;
    }
    let git = found["git"].as_str().unwrap_or_default();
    expect(git == root().display().to_string(), || format!("the tree that it lies in: {git}"))
}
