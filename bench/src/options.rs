//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::provider::Provider;
use crate::rounds::Schedule;
use crate::staged::case::Case;

/// What is printed for `--help` and beside an error.
pub(crate) const USAGE: &str = "\
nvshmem-bench: what the plugin costs beside raw libfabric, and in instructions

usage: nvshmem-bench --plugin-dir DIR [options]
  --plugin-dir DIR    the installed plugins (nvshmem_transport_libfabric.so.N)
  --libfabric2 PATH   a libfabric 2.x, for the native tcp provider; needed unless --only excludes it
  --only PROVIDER     tcp, rxm or shm alone; no instruction counts
  --channel           the device channel, in place of the plugin
  --signals           puts with signal, fences and fetching atomics, in place of puts and gets
  --staged            puts and gets of device memory that the fabric does not reach, beside host
                      memory; needs --cuda-driver or --gpu
  --cuda-driver DIR   the libcuda.so.1 in DIR is the driver: a stand-in
  --gpu               the machine's own driver, and its GPU
  --cases NAMES       with --staged, these cases alone, such as put_1MiB,get_1MiB
  --jobs N            jobs per provider (default 5; 3 with --signals or --staged)
  --rounds N          rounds per job, figure and side (default 24; 12 with --signals or --staged)
  --round-ms N        least time of a round (default 12)
  --quick             2 jobs, 10 rounds
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
    /// Whether the device channel is measured, in place of the plugin.
    pub(crate) channel: bool,
    /// Whether signals are measured, in place of puts and gets.
    pub(crate) signals: bool,
    /// Whether staged memory is measured, in place of puts and gets, and on which device.
    pub(crate) staged: Option<Device>,
    /// The cases of staged memory.
    pub(crate) cases: Vec<Case>,
    /// Jobs per provider: connections of their own, whose luck differs.
    pub(crate) jobs: u32,
    /// Rounds of each side of each case in each job.
    pub(crate) rounds: u32,
    /// Least time of a round.
    pub(crate) round: Duration,
    /// Whether instructions are counted.
    pub(crate) count: bool,
    /// Whether the breakdown is long.
    pub(crate) profile: bool,
    /// Whether every round is printed.
    pub(crate) samples: bool,
    pub(crate) keep: Option<PathBuf>,
}

/// A driver with a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    /// A stand-in, whose `libcuda.so.1` is in this directory.
    StandIn(PathBuf),
    /// What the loader finds by itself.
    Gpu,
}

impl Options {
    /// Reads the arguments. None when help is asked for.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut plugin_dir = None;
        let (mut staged, mut device) = (false, None);
        let mut options = Self {
            plugin_dir: PathBuf::new(),
            libfabric2: None,
            providers: Provider::ALL.to_vec(),
            channel: false,
            signals: false,
            staged: None,
            cases: Case::ALL.to_vec(),
            jobs: 0,
            rounds: 0,
            round: Schedule::ROUND,
            count: true,
            profile: false,
            samples: false,
            keep: None,
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--plugin-dir" => plugin_dir = Some(PathBuf::from(value()?)),
                "--libfabric2" => options.libfabric2 = Some(absolute(&value()?)),
                "--only" => {
                    let name = value()?;
                    let known = Provider::ALL.into_iter().find(|p| p.name() == name);
                    let known = known.ok_or_else(|| format!("--only: no provider {name}"))?;
                    options.providers = vec![known];
                    options.count = false;
                }
                "--jobs" => options.jobs = number(&arg, &value()?)?,
                "--rounds" => options.rounds = number(&arg, &value()?)?,
                "--round-ms" => {
                    options.round = Duration::from_millis(number(&arg, &value()?)?.into());
                }
                "--quick" => (options.jobs, options.rounds) = (2, 10),
                "--channel" => options.channel = true,
                "--signals" => options.signals = true,
                "--staged" => staged = true,
                "--cuda-driver" => device = Some(Device::StandIn(absolute(&value()?))),
                "--gpu" => device = Some(Device::Gpu),
                "--cases" => options.cases = cases(&value()?)?,
                "--profile" => options.profile = true,
                "--samples" => options.samples = true,
                "--keep" => options.keep = Some(absolute(&value()?)),
                "-h" | "--help" => return Ok(None),
                _ => return Err(format!("unknown argument {arg}")),
            }
        }
        if staged {
            options.staged =
                Some(device.ok_or("--staged needs a device: --cuda-driver DIR or --gpu")?);
        }
        let (jobs, rounds) =
            if options.signals || options.channel || staged { (3, 12) } else { (5, 24) };
        if options.jobs == 0 {
            options.jobs = jobs;
        }
        if options.rounds == 0 {
            options.rounds = rounds;
        }
        if options.profile {
            (options.count, options.providers) = (true, Vec::new());
        }
        if options.channel {
            // It has no plugin.
            return Ok(Some(options));
        }
        if options.providers.contains(&Provider::Tcp) && options.libfabric2.is_none() {
            return Err(String::from("the native tcp provider needs --libfabric2"));
        }
        options.plugin_dir = plugin_dir.ok_or("--plugin-dir is missing")?;
        Ok(Some(options))
    }
}

/// Cases of staged memory, by their names with commas between.
pub(crate) fn cases(names: &str) -> Result<Vec<Case>, String> {
    let case = |name| {
        let known = Case::ALL.into_iter().find(|case| case.to_string() == name);
        known.ok_or_else(|| format!("no case {name}"))
    };
    names.split(',').map(case).collect()
}

fn number(arg: &str, text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("{arg} {text}: a number of at least 1 is meant")),
        Ok(number) => Ok(number),
    }
}

/// PEs have a working directory of their own.
fn absolute(path: &str) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
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
        assert!(quick.rounds * quick.jobs < options.rounds * options.jobs);
    }

    #[test]
    fn signals_take_fewer_rounds_unless_told_otherwise() {
        let plain = parse("--plugin-dir p --only shm").unwrap().unwrap();
        let signals = parse("--plugin-dir p --only shm --signals").unwrap().unwrap();
        assert!(signals.signals && signals.rounds < plain.rounds && signals.jobs < plain.jobs);
        let told = parse("--plugin-dir p --only shm --rounds 3 --signals --round-ms 1 --jobs 1");
        let told = told.unwrap().unwrap();
        assert_eq!((told.rounds, told.jobs, told.round), (3, 1, Duration::from_millis(1)));
    }

    #[test]
    fn the_channel_needs_no_plugin() {
        let channel = parse("--channel").unwrap().unwrap();
        assert!(channel.channel && channel.count && !channel.signals);
        assert_eq!((channel.jobs, channel.rounds), (3, 12));
        assert!(parse("--channel --profile").unwrap().unwrap().profile);
    }

    #[test]
    fn staged_memory_is_of_a_device_that_is_named() {
        let fails = parse("--plugin-dir p --only shm --staged").unwrap_err();
        assert!(fails.contains("--cuda-driver") && fails.contains("--gpu"), "{fails}");
        let gpu = parse("--plugin-dir p --only shm --staged --gpu").unwrap().unwrap();
        assert_eq!((gpu.staged, gpu.jobs, gpu.rounds), (Some(Device::Gpu), 3, 12));
        let fake = parse("--plugin-dir p --only shm --cuda-driver /f --staged").unwrap().unwrap();
        assert_eq!(fake.staged, Some(Device::StandIn(PathBuf::from("/f"))));
        let plain = parse("--plugin-dir p --only shm").unwrap().unwrap();
        assert_eq!((plain.staged, plain.cases), (None, Case::ALL.to_vec()));
        let one = parse("--plugin-dir p --only shm --staged --gpu --cases get_1MiB,put_8B");
        assert_eq!(one.unwrap().unwrap().cases, [Case::ALL[3], Case::ALL[4]]);
        assert!(parse("--plugin-dir p --cases get_1B").unwrap_err().contains("no case get_1B"));
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
        assert!(fails("--plugin-dir p --rounds 0").contains("at least 1"));
        assert!(fails("--fast").contains("--fast"));
        assert_eq!(parse("--help"), Ok(None));
    }
}
