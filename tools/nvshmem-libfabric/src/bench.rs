//! `bench`: the plugin beside raw libfabric, by the bench of this project's own developers.

use nvshmem_bench::Options;

use crate::error::ToolError;
use crate::info::check_settings;
use crate::libraries::plugins::Plugins;
use crate::selftest::job::why;

/// Measures, and prints. Whether all was right.
///
/// # Errors
/// There are no plugin files, or settings are refused.
pub(crate) fn run(mut options: Options) -> Result<bool, ToolError> {
    check_settings(None)?;
    options.find_plugins(|| Plugins::find(None).map(|plugins| plugins.directory))?;
    match nvshmem_bench::run(&options) {
        Ok(()) => Ok(true),
        Err(error) => {
            eprintln!("nvshmem-libfabric: {}", why(&error));
            Ok(false)
        }
    }
}
