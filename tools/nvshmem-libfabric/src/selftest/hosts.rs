//! Hosts that a self-test is spread over: how each is reached, and whether all have the same.
//!
//! On each host a shell is started by the agent, such as `ssh HOST`, and told by its standard input
//! what to do: see [`nvshmem_sim::Remote`]. Nothing listens for it, and nothing of the job is on a
//! command line.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use launcher::Ended;
use nvshmem_sim::{Remote, exports, is_setting, shell, word};
use serde::Deserialize;

use crate::child;
use crate::error::ToolError;
use crate::info::VERSION;
use crate::libraries::plugins::Plugins;
use crate::options::{JobOptions, Memory};
use crate::probe::{self, Choice, Fabric, Gpus, Refused};

const PATIENCE: Duration = Duration::from_secs(60);

const HERE: &str = "localhost";

const REACHED: &str = "nvshmem-libfabric: reached";
const ABSENT: &str = "nvshmem-libfabric: absent";

/// A host as the command line names it, with how many PEs it takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    name: String,
    slots: u32,
}

impl Named {
    /// Writes it as the command line has it, with so many PEs.
    pub(crate) fn with(&self, slots: u32) -> String {
        match self.name.contains(':') {
            true => format!("[{}]:{slots}", self.name),
            false => format!("{}:{slots}", self.name),
        }
    }

    /// Reads `NAME`, `NAME:SLOTS`, or `[ADDRESS]:SLOTS`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, slots) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
            Some((address, "")) => (address, None),
            Some((address, rest)) => (address, rest.strip_prefix(':').or(Some(rest))),
            None => match text.split_once(':') {
                Some((_, rest)) if rest.contains(':') => {
                    return Err(String::from("an address with colons goes into brackets: [::1]:2"));
                }
                Some((name, slots)) => (name, Some(slots)),
                None => (text, None),
            },
        };
        let fits = |letter: char| letter.is_ascii_alphanumeric() || "-._@:%".contains(letter);
        // The agent would take it for an option, or a shell for more than a word.
        if name.is_empty() || name.starts_with('-') || !name.chars().all(fits) {
            return Err(String::from("a host is a name, an address or USER@NAME"));
        }
        let slots = slots.map_or(Ok(1), |slots| match slots.parse() {
            Ok(slots) if (1..=64).contains(&slots) => Ok(slots),
            _ => Err(String::from("PEs of a host are from 1 to 64, as in node1:2")),
        })?;
        Ok(Self { name: name.to_owned(), slots })
    }
}

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) slots: u32,
    /// Starts PEs there; none on this host.
    pub(crate) remote: Option<Arc<Remote>>,
    /// The provider that it would take in a job over several hosts.
    taken: Choice,
    each: Vec<Choice>,
    gpus: usize,
}

#[derive(Debug, Deserialize)]
struct Said {
    plugins: Option<Plugins>,
    plugins_error: Option<String>,
    fabric: Fabric,
    gpus: Gpus,
}

/// The reason why a host cannot take part, and the remedy.
type Problem = (String, &'static str);

fn unreached(shown: &str, why: &str) -> Problem {
    let hint = "`ssh HOST true` has to work without a question: keys, known hosts, the name; --ssh changes the command";
    (format!("it is not reached: `{shown}`: {why}"), hint)
}

fn other_version(theirs: &str) -> Problem {
    let message = format!("it has {theirs}, and this host {VERSION}");
    (message, "install the same release on all hosts")
}

/// Returns the hosts that the options name, if any, all of which have this version of the tool, the
/// plugin files and GPUs for memory of GPUs; or an error that names every host that has not.
pub(crate) fn find(options: &JobOptions, numbers: &[u32]) -> Result<Vec<Host>, ToolError> {
    let (reach, plugin_dir) = (&options.reach, options.plugin_dir.as_deref());
    let named = merged(&reach.hosts);
    let agent = words(&reach.ssh)?;
    let own = env::current_exe().map_err(|error| {
        ToolError::new(format!("own program: {error}"), "name it with --prefix")
    })?;
    let prefix = reach.prefix.as_ref();
    let there = prefix.map_or_else(|| own.clone(), |at| at.join("bin/nvshmem-libfabric"));
    let found: Vec<Result<Host, Problem>> = thread::scope(|scope| {
        let look = |named: &Named| {
            let agent = (named.name != HERE).then(|| with_name(&agent, &named.name));
            let tool = if agent.is_some() { there.clone() } else { own.clone() };
            let named = named.clone();
            scope.spawn(move || host(named, agent, tool, plugin_dir, numbers))
        };
        let looks: Vec<_> = named.iter().map(look).collect();
        let end = |look: thread::ScopedJoinHandle<'_, _>| {
            look.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        looks.into_iter().map(end).collect()
    });
    let (mut hosts, mut hints) = (Vec::new(), BTreeSet::new());
    let mut message = String::from("not all hosts can take part");
    for (named, found) in named.iter().zip(found) {
        match found {
            Ok(host) => hosts.push(host),
            Err((problem, hint)) => {
                message.push_str(&format!("\n  {}: {problem}", named.name));
                hints.insert(hint);
            }
        }
    }
    if !hints.is_empty() {
        let hints: Vec<&str> = hints.into_iter().collect();
        return Err(ToolError::new(message, hints.join("\nhint: ")));
    }
    if options.memory == Memory::Gpu {
        check_gpus(&hosts)?;
    }
    Ok(hosts)
}

fn check_gpus(hosts: &[Host]) -> Result<(), ToolError> {
    let there = hosts.iter().find(|host| host.gpus == 0).map(|host| format!("on {}", host.name));
    let here = hosts.is_empty().then(probe::gpus).filter(|gpus| gpus.devices.is_empty());
    let why = |gpus: Gpus| gpus.error.map_or_else(String::new, |why| format!(": {why}"));
    let Some(place) = there.or(here.map(|gpus| format!("here{}", why(gpus)))) else {
        return Ok(());
    };
    let message = format!("CUDA's driver shows no GPU {place}");
    Err(ToolError::new(message, "without --memory gpu it is memory of the host"))
}

/// Each host once: one that is named again takes as many more.
fn merged(named: &[Named]) -> Vec<Named> {
    let mut hosts: Vec<Named> = Vec::new();
    for host in named {
        match hosts.iter_mut().find(|known| known.name == host.name) {
            Some(known) => known.slots += host.slots,
            None => hosts.push(host.clone()),
        }
    }
    hosts
}

fn words(text: &str) -> Result<Vec<String>, ToolError> {
    let words = shlex::split(text).filter(|words| !words.is_empty());
    words.ok_or_else(|| {
        let message =
            format!("--ssh `{text}` is no command: it is empty, or a quotation has no end");
        ToolError::new(message, "such as --ssh \"ssh -p 2222\"")
    })
}

fn with_name(agent: &[String], name: &str) -> Vec<OsString> {
    const NAME: &str = "{host}";
    let behind = (!agent.iter().any(|word| word.contains(NAME))).then(|| name.into());
    agent.iter().map(|word| word.replace(NAME, name).into()).chain(behind).collect()
}

fn host(
    named: Named,
    agent: Option<Vec<OsString>>,
    tool: PathBuf,
    plugin_dir: Option<&Path>,
    numbers: &[u32],
) -> Result<Host, Problem> {
    // This host is asked in the same way, by a shell of its own.
    let words = agent.clone().unwrap_or_else(|| vec!["env".into()]);
    let shown = shown(&words);
    let answer = child::ask(shell(&words), &script(&tool, plugin_dir), PATIENCE);
    let answer = answer.map_err(|why| unreached(&shown, &why))?;
    let said = understand(&answer, &shown, &tool)?;
    let directory = check(&said, numbers)?;
    let Named { name, slots } = named;
    let remote = agent.map(|agent| {
        Arc::new(Remote { host: name.clone(), agent, program: tool, plugin_dir: directory })
    });
    let Fabric { across_hosts: taken, providers: each, .. } = said.fabric;
    Ok(Host { name, slots, remote, taken, each, gpus: said.gpus.devices.len() })
}

/// Returns what a host's shell is to do: say that it is reached, and become the tool that says what
/// is there.
fn script(tool: &Path, plugin_dir: Option<&Path>) -> String {
    let settings =
        env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let settings: Vec<(String, OsString)> = settings.filter(|(name, _)| is_setting(name)).collect();
    let exports = exports(settings.iter().map(|(name, value)| (name.as_str(), value.clone())));
    let tool = word(tool);
    let files = plugin_dir.map_or_else(String::new, |directory| {
        // The same path there, though the directory at hand may be another.
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        format!(" --plugin-dir {}", word(&directory))
    });
    // The rest of the lines is not for the programs that these start.
    format!(
        "echo '{REACHED}'\n{exports}if [ ! -e {tool} ]; then echo '{ABSENT}'; exit; fi\n\
         {tool} -V </dev/null && exec {tool} info --only plugins,fabric,gpus --json{files} </dev/null\n"
    )
}

fn shown(words: &[OsString]) -> String {
    words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn understand(answer: &Ended, shown: &str, tool: &Path) -> Result<Said, Problem> {
    let last = child::last_words(answer);
    let said = &answer.out;
    let Some((_, said)) = said.split_once(&format!("{REACHED}\n")) else {
        return Err(unreached(shown, &format!("it {}: {last}", answer.end)));
    };
    if said.starts_with(ABSENT) {
        let hint = "install this release there at the same path, or name where it is on the hosts with --prefix";
        return Err((format!("it has no {}", tool.display()), hint));
    }
    let broken = |why: String| {
        let message = format!("the tool there does not work: {}: {why}", tool.display());
        (message, "run `nvshmem-libfabric info` on that host")
    };
    let (version, said) = said.split_once('\n').unwrap_or((said, ""));
    match version.strip_prefix("nvshmem-libfabric ") {
        Some(VERSION) if answer.end.is_success() => serde_json::from_str(said)
            .map_err(|error| broken(format!("its answer cannot be read: {error}"))),
        Some(VERSION) | None => Err(broken(last)),
        Some(other) => Err(other_version(other)),
    }
}

fn check(said: &Said, numbers: &[u32]) -> Result<PathBuf, Problem> {
    let hint = "install this release there, or name its plugin files with --plugin-dir";
    let Some(plugins) = &said.plugins else {
        return Err((said.plugins_error.clone().unwrap_or_default(), hint));
    };
    for number in numbers {
        let file = plugins.of(*number).map_err(|error| (error.to_string(), hint))?;
        if file.version != VERSION {
            return Err(other_version(&format!("{} of {}", file.path.display(), file.version)));
        }
    }
    Ok(plugins.directory.clone())
}

/// Returns the providers to try: those that were named, which every host has, or the one that all
/// would take.
pub(crate) fn providers(hosts: &[Host], named: &[String]) -> Result<Vec<String>, ToolError> {
    let is_named = |asked: &str| named.iter().any(|name| name.eq_ignore_ascii_case(asked));
    if hosts.len() > 1 && is_named("shm") {
        let message = "shm is memory of one host, and these are several";
        return Err(ToolError::new(message, "name another provider, or none"));
    }
    let mut message = String::new();
    for Host { name, taken, each, .. } in hosts {
        let choices = each.iter().filter(|choice| is_named(&choice.asked));
        let choices = choices.chain(Some(taken).filter(|_| named.is_empty()));
        for choice in choices.filter(|choice| choice.provider.is_none()) {
            message.push_str(&format!("\n  {name}: {} cannot be used there", choice.asked));
            for Refused { what, reason } in choice.refused.iter().take(3) {
                message.push_str(&format!("; {what}: {reason}"));
            }
        }
    }
    if !message.is_empty() {
        let message = format!("not all hosts have the provider{message}");
        return Err(ToolError::new(message, "`nvshmem-libfabric doctor` on that host says more"));
    }
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    let taken = |host: &Host| host.taken.provider.clone().unwrap_or_default();
    let all: BTreeSet<String> = hosts.iter().map(taken).collect();
    if all.len() > 1 {
        let each = hosts.iter().map(|host| format!("\n  {}: {}", host.name, taken(host)));
        let each = each.collect::<String>();
        let message = format!("the hosts would take different providers{each}");
        let hint = "a job has one: name it with --provider; `nvshmem-libfabric doctor` on a host says why it takes which";
        return Err(ToolError::new(message, hint));
    }
    Ok(all.into_iter().collect())
}

pub(crate) fn check_here(fabric: &Fabric, named: &[String]) -> Result<(), ToolError> {
    const HINT: &str = "`nvshmem-libfabric doctor -v` says what can be used";
    if let Some(error) = &fabric.error {
        return Err(ToolError::new(error, HINT));
    }
    for name in named {
        // What `auto` gives is not looked for among them.
        let all = [&fabric.one_host].into_iter().chain(&fabric.providers);
        let choice = all.into_iter().rfind(|choice| choice.asked.eq_ignore_ascii_case(name));
        let Some(choice) = choice.filter(|choice| choice.provider.is_none()) else { continue };
        let reasons = choice.refused.iter().map(|Refused { what, reason }| {
            match what.eq_ignore_ascii_case(name) {
                true => format!(": {reason}"),
                false => format!("\n  {what}: {reason}"),
            }
        });
        let reasons = reasons.collect::<String>();
        return Err(ToolError::new(format!("{name} cannot be used here{reasons}"), HINT));
    }
    Ok(())
}

impl Host {
    pub(crate) fn rails(&self) -> String {
        let rails: Vec<&str> = self.taken.rails.iter().map(|rail| rail.name.as_str()).collect();
        format!("{}: {}", self.name, rails.join(", "))
    }
}

pub(crate) fn table(hosts: &[Host]) -> String {
    let mut text = String::from("PEs  provider      rails");
    for host in hosts {
        let taken = host.taken.provider.as_deref().unwrap_or("none");
        text.push_str(&format!("\n{:>3}  {taken:<12}  {}", host.slots, host.rails()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_host_takes_the_sum() {
        let named = ["a", "b:2", "a:3"].map(|text| Named::parse(text).unwrap());
        let merged = merged(&named).into_iter().map(|host| host.with(host.slots));
        assert_eq!(merged.collect::<Vec<_>>(), ["a:4", "b:2"]);
    }

    #[test]
    fn agent_template_places_the_host() {
        let agent = |text: &str| shown(&with_name(&words(text).unwrap(), "b"));
        assert_eq!(agent("ssh -o 'ConnectTimeout 3'"), "ssh -o ConnectTimeout 3 b");
        assert_eq!(agent("kubectl exec -i pod/{host} --"), "kubectl exec -i pod/b --");
        assert!(words("ssh 'x").is_err() && words(" ").is_err());
    }

    #[test]
    fn ambiguous_host_names_are_refused() {
        let read = |text| Named::parse(text).map(|host| (host.name, host.slots));
        let is = |name: &str, slots| Ok((name.to_owned(), slots));
        assert_eq!(read("a"), is("a", 1));
        assert_eq!(read("me@node-1.x:4"), is("me@node-1.x", 4));
        assert_eq!(read("[fe80::1%eth0]:2"), is("fe80::1%eth0", 2));
        assert_eq!(read("[::1]"), is("::1", 1));
        for wrong in ",:2,-oProxyCommand=x,a b,a;b,$(a),a:0,a:65,a:x,::1,[::1]2x".split(',') {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
