//! The command line.

use std::path::PathBuf;

use crate::provider::Provider;

/// What is printed for `--help` and beside an error.
pub(crate) const USAGE: &str = "\
nvshmem-bench: what the plugin costs beside raw libfabric, and in instructions

usage: nvshmem-bench --plugin-dir DIR [options]
  --plugin-dir DIR    the installed plugins (nvshmem_transport_libfabric.so.N)
  --libfabric2 PATH   a libfabric 2.x, for the native tcp provider; needed unless --only excludes it
  --only PROVIDER     tcp, rxm or shm alone; no instruction counts
  --pairs N           pairs of rounds per figure (default 120)
  --quick             20 pairs
  --profile           instruction counts alone, with a longer breakdown
  --samples           also print the time of every round
  --keep DIR          keep callgrind's files there
";

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    pub(crate) plugin_dir: PathBuf,
    pub(crate) libfabric2: Option<PathBuf>,
    pub(crate) providers: Vec<Provider>,
    pub(crate) pairs: u32,
    /// Whether instructions are counted.
    pub(crate) count: bool,
    /// Whether the breakdown is long.
    pub(crate) profile: bool,
    /// Whether every round is printed.
    pub(crate) samples: bool,
    pub(crate) keep: Option<PathBuf>,
}

impl Options {
    /// Reads the arguments. None when help is asked for.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut plugin_dir = None;
        let mut options = Self {
            plugin_dir: PathBuf::new(),
            libfabric2: None,
            providers: Provider::ALL.to_vec(),
            pairs: 120,
            count: true,
            profile: false,
            samples: false,
            keep: None,
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--plugin-dir" => plugin_dir = Some(PathBuf::from(value()?)),
                "--libfabric2" => options.libfabric2 = Some(value()?.into()),
                "--only" => {
                    let name = value()?;
                    let known = Provider::ALL.into_iter().find(|p| p.name() == name);
                    let known = known.ok_or_else(|| format!("--only: no provider {name}"))?;
                    options.providers = vec![known];
                    options.count = false;
                }
                "--pairs" => {
                    let text = value()?;
                    let pairs: u32 = text.parse().map_err(|e| format!("--pairs {text}: {e}"))?;
                    options.pairs = pairs.max(1);
                }
                "--quick" => options.pairs = 20,
                "--profile" => options.profile = true,
                "--samples" => options.samples = true,
                "--keep" => options.keep = Some(value()?.into()),
                "-h" | "--help" => return Ok(None),
                _ => return Err(format!("unknown argument {arg}")),
            }
        }
        if options.profile {
            (options.count, options.providers) = (true, Vec::new());
        }
        if options.providers.contains(&Provider::Tcp) && options.libfabric2.is_none() {
            return Err(String::from("the native tcp provider needs --libfabric2"));
        }
        options.plugin_dir = plugin_dir.ok_or("--plugin-dir is missing")?;
        Ok(Some(options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Options>, String> {
        Options::parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn everything_is_measured_unless_told_otherwise() {
        let options = parse("--plugin-dir p --libfabric2 f").unwrap().unwrap();
        assert_eq!(options.providers, Provider::ALL);
        assert!(options.count && !options.profile);
        let quick = parse("--plugin-dir p --libfabric2 f --quick").unwrap().unwrap();
        assert!(quick.pairs < options.pairs);
    }

    #[test]
    fn one_provider_or_the_profile_alone() {
        let options = parse("--plugin-dir p --only shm").unwrap().unwrap();
        assert_eq!((options.providers, options.count), (vec![Provider::Shm], false));
        let options = parse("--plugin-dir p --profile").unwrap().unwrap();
        assert_eq!((options.providers, options.count), (Vec::new(), true));
    }

    #[test]
    fn what_is_missing_or_unknown_is_named() {
        let fails = |line| parse(line).unwrap_err();
        assert!(fails("--plugin-dir p").contains("--libfabric2"));
        assert!(fails("--libfabric2 f").contains("--plugin-dir"));
        assert!(fails("--plugin-dir").contains("needs a value"));
        assert!(fails("--plugin-dir p --only ib").contains("no provider ib"));
        assert!(fails("--fast").contains("--fast"));
        assert_eq!(parse("--help"), Ok(None));
    }
}
