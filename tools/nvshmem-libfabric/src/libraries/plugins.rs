//! Our plugin files: one for each major of NVSHMEM's transport interface, and one for NCCL, in one
//! directory.

use std::env;
use std::path::{Path, PathBuf};

use nvshmem_abi::Major;
use serde::{Deserialize, Serialize};

use crate::error::ToolError;
use crate::libraries::elf::{Elf, MACHINE};

pub(crate) fn file_name(number: u32) -> String {
    nvshmem_abi::file_name("libfabric", number)
}

/// The file that NCCL opens for `NCCL_RMA_PLUGIN=nvshmem-libfabric`.
pub(crate) const NCCL_FILE: &str = "libnccl-rma-nvshmem-libfabric.so";

pub(crate) fn numbers() -> Vec<u32> {
    Major::ALL.iter().map(|major| major.number().unsigned_abs()).collect()
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Plugin {
    /// The major of NVSHMEM's interface; none is NCCL's.
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u32>,
    pub(crate) path: PathBuf,
    pub(crate) version: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Plugins {
    pub(crate) directory: PathBuf,
    pub(crate) files: Vec<Plugin>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nccl: Option<Plugin>,
    /// Files that have such a name and cannot be used, with the reason.
    pub(crate) refused: Vec<String>,
}

const INSTALL: &str =
    "name the directory that `make install` has filled with --plugin-dir, such as PREFIX/lib";

impl Plugins {
    /// The files in the directory that is named, else those that were installed with this program.
    pub(crate) fn find(named: Option<&Path>) -> Result<Self, ToolError> {
        if let Some(directory) = named {
            let plugins = Self::in_directory(directory);
            if !plugins.files.is_empty() {
                return Ok(plugins);
            }
            let message = format!("{} has no plugin file of this project", directory.display());
            let refused = plugins.refused.iter().map(|refused| format!("\n  {refused}"));
            return Err(ToolError::new(message + &refused.collect::<String>(), INSTALL));
        }
        let program = env::current_exe().unwrap_or_default();
        let beside = program.parent().unwrap_or(Path::new("/"));
        // As `make install` leaves them, as Debian's packages do, and beside the program.
        let debian = format!("../lib/{}-linux-gnu", env::consts::ARCH);
        let places = [beside.join("../lib"), beside.join(debian), beside.to_owned()];
        let found = places.iter().map(|place| {
            Self::in_directory(&place.canonicalize().unwrap_or_else(|_| place.clone()))
        });
        found.into_iter().find(|plugins| !plugins.files.is_empty()).ok_or_else(|| {
            let (lib, beside) = (places[0].display(), beside.display());
            let message =
                format!("there is no plugin file beside this program, in {lib} or {beside}");
            ToolError::new(message, INSTALL)
        })
    }

    fn in_directory(directory: &Path) -> Self {
        // Programs that it is preloaded into have a working directory of their own.
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        let (mut files, mut refused) = (Vec::new(), Vec::new());
        for number in numbers().into_iter().map(Some).chain([None]) {
            let path = directory.join(number.map_or(NCCL_FILE.into(), file_name));
            if path.symlink_metadata().is_err() {
                continue;
            }
            match version(&path, number) {
                Ok(version) => files.push(Plugin { number, path, version }),
                Err(reason) => refused.push(format!("{}: {reason}", path.display())),
            }
        }
        let nccl = files.iter().position(|plugin: &Plugin| plugin.number.is_none());
        let nccl = nccl.map(|at| files.remove(at));
        Self { directory, files, nccl, refused }
    }

    pub(crate) fn nccl(&self) -> Result<&Plugin, ToolError> {
        self.nccl.as_ref().ok_or_else(|| {
            let message = format!("{} has no {NCCL_FILE}", self.directory.display());
            ToolError::new(message, INSTALL)
        })
    }

    pub(crate) fn of(&self, number: u32) -> Result<&Plugin, ToolError> {
        self.files.iter().find(|plugin| plugin.number == Some(number)).ok_or_else(|| {
            let message = format!("{} has no {}", self.directory.display(), file_name(number));
            if numbers().contains(&number) {
                return ToolError::new(message, INSTALL);
            }
            let served = numbers().iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            let newer = "install a newer release of this transport";
            ToolError::new(message, format!("this version serves the files {served}: {newer}"))
        })
    }
}

fn version(path: &Path, number: Option<u32>) -> Result<String, String> {
    let elf = Elf::read(path).map_err(|error| error.to_string())?;
    let version = elf.transport.ok_or("it is not of this project: it has no note of it")?;
    if elf.machine != MACHINE {
        return Err(String::from("it is for another processor"));
    }
    let soname = elf.soname.unwrap_or_default();
    if number.is_some_and(|number| soname != file_name(number)) {
        let why = "so NVSHMEM would not take it for this one";
        return Err(format!("its name inside is `{soname}`, {why}"));
    }
    Ok(version)
}
