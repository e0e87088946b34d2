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

use launcher::{Ended, Stream};
use nvshmem_sim::{Remote, exports, is_setting, shell, word};
use serde::Deserialize;

use crate::child;
use crate::error::ToolError;
use crate::info::VERSION;
use crate::libraries::plugins::Plugins;
use crate::options::{Memory, Reach};
use crate::probe::{self, Choice, Fabric, Gpus, Refused};
use crate::selftest::named::Named;

const PATIENCE: Duration = Duration::from_secs(60);

const HERE: &str = "localhost";

const NAME: &str = "{host}";

const REACHED: &str = "nvshmem-libfabric: reached";
const ABSENT: &str = "nvshmem-libfabric: absent";

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) slots: u32,
    /// What starts PEs there; none on this host.
    pub(crate) remote: Option<Arc<Remote>>,
    /// What it would take in a job over several hosts.
    taken: Choice,
    each: Vec<Choice>,
    pub(crate) gpus: usize,
}

#[derive(Debug, Deserialize)]
struct Said {
    plugins: Option<Plugins>,
    plugins_error: Option<String>,
    fabric: Fabric,
    gpus: Gpus,
}

/// Why a host cannot take part, and what helps.
type Problem = (String, &'static str);

fn unreached(shown: &str, why: &str) -> Problem {
    let hint = "`ssh HOST true` has to work without a question: keys, known hosts, the name; --ssh changes the command";
    (format!("it is not reached: `{shown}`: {why}"), hint)
}

fn other_version(theirs: &str) -> Problem {
    let message = format!("it has {theirs}, and this host {VERSION}");
    (message, "install the same release on all hosts")
}

/// The hosts that the options name, all of which have this version of the tool and the plugin file
/// of a number.
///
/// # Errors
/// Every host that has not, and why.
pub(crate) fn find(
    reach: &Reach,
    plugin_dir: Option<&Path>,
    numbers: &[u32],
) -> Result<Vec<Host>, ToolError> {
    let named = merged(&reach.hosts);
    let agent = words(&reach.ssh)?;
    let tool = match &reach.prefix {
        Some(prefix) => prefix.join("bin/nvshmem-libfabric"),
        None => env::current_exe().map_err(|error| {
            ToolError::new(format!("own program: {error}"), "name it with --prefix")
        })?,
    };
    let found: Vec<Result<Host, Problem>> = thread::scope(|scope| {
        let look = |named: &Named| {
            let (named, tool) = (named.clone(), tool.clone());
            let agent = (named.name != HERE).then(|| with_name(&agent, &named.name));
            scope.spawn(move || host(named, agent, tool, plugin_dir, numbers))
        };
        let looks: Vec<_> = named.iter().map(look).collect();
        let end = |look: thread::ScopedJoinHandle<'_, _>| {
            look.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        looks.into_iter().map(end).collect()
    });
    let mut hosts = Vec::new();
    let (mut message, mut hints) = (String::from("not all hosts can take part"), BTreeSet::new());
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
    Ok(hosts)
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
    let mut words: Vec<OsString> =
        agent.iter().map(|word| word.replace(NAME, name).into()).collect();
    if !agent.iter().any(|word| word.contains(NAME)) {
        words.push(name.into());
    }
    words
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
    let tool = if agent.is_some() { tool } else { env::current_exe().unwrap_or(tool) };
    let asked = script(&tool, "info --only plugins,fabric,gpus --json", plugin_dir);
    let answer = child::ask(shell(&words), &asked, PATIENCE);
    let answer = answer.map_err(|why| unreached(&shown, &why))?;
    let said = understand(&answer, &shown, &tool)?;
    let directory = check(&said, numbers)?;
    let remote = agent.map(|agent| {
        let host = named.name.clone();
        Arc::new(Remote { host, agent, program: tool, plugin_dir: directory })
    });
    let Named { name, slots } = named;
    let Fabric { across_hosts: taken, providers: each, .. } = said.fabric;
    Ok(Host { name, slots, remote, taken, each, gpus: said.gpus.devices.len() })
}

fn script(tool: &Path, question: &str, plugin_dir: Option<&Path>) -> String {
    let settings =
        env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let settings: Vec<(String, OsString)> = settings.filter(|(name, _)| is_setting(name)).collect();
    let exports = exports(settings.iter().map(|(name, value)| (name.as_str(), value.clone())));
    let tool = word(tool);
    let files = plugin_dir.map(|directory| {
        // The same path there, though the directory at hand may be another.
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        format!(" --plugin-dir {}", word(&directory))
    });
    let files = files.unwrap_or_default();
    // The rest of the lines is not for the programs that these start.
    format!(
        "echo '{REACHED}'\n{exports}if [ ! -e {tool} ]; then echo '{ABSENT}'; exit; fi\n\
         {tool} -V </dev/null && exec {tool} {question}{files} </dev/null\n"
    )
}

fn shown(words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

fn understand(answer: &Ended, shown: &str, tool: &Path) -> Result<Said, Problem> {
    let last = child::last_words(answer);
    let said = answer.text(Stream::Out);
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
    let version = version.strip_prefix("nvshmem-libfabric ").ok_or_else(|| broken(last.clone()))?;
    if version != VERSION {
        return Err(other_version(version));
    }
    if !answer.end.is_success() {
        return Err(broken(last));
    }
    serde_json::from_str(said)
        .map_err(|error| broken(format!("its answer cannot be read: {error}")))
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

/// The providers to try: those that were named, which every host has, or the one that all would
/// take.
///
/// # Errors
/// A host has not, or hosts would take different ones.
pub(crate) fn providers(hosts: &[Host], named: &[String]) -> Result<Vec<String>, ToolError> {
    let lacks = |host: &Host, choice: &Choice| {
        let mut line = format!("\n  {}: {} cannot be used there", host.name, choice.asked);
        for refused in choice.refused.iter().take(3) {
            line.push_str(&format!("; {}: {}", refused.what, refused.reason));
        }
        line
    };
    let several = hosts.len() > 1;
    let mut message = String::new();
    for name in named.iter().filter(|name| !name.eq_ignore_ascii_case("auto")) {
        if several && name.eq_ignore_ascii_case("shm") {
            let message = "shm is memory of one host, and these are several";
            return Err(ToolError::new(message, "name another provider, or none"));
        }
        for host in hosts {
            let choice = host.each.iter().find(|choice| choice.asked.eq_ignore_ascii_case(name));
            if let Some(choice) = choice.filter(|choice| choice.provider.is_none()) {
                message.push_str(&lacks(host, choice));
            }
        }
    }
    if message.is_empty() && !named.is_empty() {
        return Ok(named.to_vec());
    }
    for host in hosts.iter().filter(|host| named.is_empty() && host.taken.provider.is_none()) {
        message.push_str(&lacks(host, &host.taken));
    }
    let taken: BTreeSet<&String> =
        hosts.iter().filter_map(|host| host.taken.provider.as_ref()).collect();
    if message.is_empty() && taken.len() > 1 {
        for host in hosts {
            let taken = host.taken.provider.as_deref().unwrap_or_default();
            message.push_str(&format!("\n  {}: {taken}", host.name));
        }
        let message = format!("the hosts would take different providers{message}");
        let hint = "a job has one: name it with --provider; `nvshmem-libfabric doctor` on a host says why it takes which";
        return Err(ToolError::new(message, hint));
    }
    if !message.is_empty() {
        let message = format!("not all hosts have the provider{message}");
        return Err(ToolError::new(message, "`nvshmem-libfabric doctor` on that host says more"));
    }
    Ok(taken.into_iter().cloned().collect())
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
        if let Some(choice) = choice.filter(|choice| choice.provider.is_none()) {
            let mut message = format!("{name} cannot be used here");
            for Refused { what, reason } in &choice.refused {
                message.push_str(&match what.eq_ignore_ascii_case(name) {
                    true => format!(": {reason}"),
                    false => format!("\n  {what}: {reason}"),
                });
            }
            return Err(ToolError::new(message, HINT));
        }
    }
    Ok(())
}

/// That there are GPUs for memory of GPUs: on the hosts, or on this one where none is named.
pub(crate) fn check_memory(memory: Memory, hosts: &[Host]) -> Result<(), ToolError> {
    if memory == Memory::Host {
        return Ok(());
    }
    let message = match hosts.iter().find(|host| host.gpus == 0) {
        Some(host) => format!("CUDA's driver shows no GPU on {}", host.name),
        None if !hosts.is_empty() => return Ok(()),
        None => match probe::gpus() {
            gpus if !gpus.devices.is_empty() => return Ok(()),
            gpus => {
                let why = gpus.error.map_or_else(String::new, |why| format!(": {why}"));
                format!("CUDA's driver shows no GPU here{why}")
            }
        },
    };
    Err(ToolError::new(message, "without --memory gpu it is memory of the host"))
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
        let twice = [
            Named::parse("a").unwrap(),
            Named::parse("b:2").unwrap(),
            Named::parse("a:3").unwrap(),
        ];
        let merged: Vec<_> =
            merged(&twice).into_iter().map(|host| (host.name, host.slots)).collect();
        assert_eq!(merged, [(String::from("a"), 4), (String::from("b"), 2)]);
    }

    #[test]
    fn agent_template_places_the_host() {
        let agent = |text: &str| shown(&with_name(&words(text).unwrap(), "b"));
        assert_eq!(agent("ssh -o 'ConnectTimeout 3'"), "ssh -o ConnectTimeout 3 b");
        assert_eq!(agent("kubectl exec -i pod/{host} --"), "kubectl exec -i pod/b --");
        assert!(words("ssh 'x").is_err() && words(" ").is_err());
    }
}
