//! Starts the PEs of a job, serves their collectives, and sees to it that the job ends.
//!
//! One thread does it all, the caller's: it waits for the PEs' sockets and pipes together. Nothing
//! here waits for longer than a tick, so the deadlines hold whatever the PEs do.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use launcher::{PrivateDir, Process, Stream, poll, pollfd};

use crate::launch::coordinator::Coordinator;
use crate::launch::leftovers::Leftovers;
use crate::launch::link::Link;
use crate::launch::remote::{Remote, shell};
use crate::launch::report::{JobReport, Outcome, PeReport};
use crate::settings::{JobSettings, is_setting};
use crate::socket::{Connection, STREAMS};
use crate::wire::{FromPe, ToPe};

/// Longest wait for something to read. Ends of processes are noticed at this rate where no pipe
/// tells earlier.
const TICK: Duration = Duration::from_millis(20);

/// How long a PE that has ended is heard for what it has sent before.
const DRAIN: Duration = Duration::from_millis(500);

/// What the launcher hears from a PE while the job runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told<'a> {
    /// A value that the PE hands over ([`crate::Job::report`]): its name and its text.
    Value(&'a str, &'a str),
    /// The PE joins a collective, the plugin's among them. They are counted from 0.
    Joins(u64),
}

/// The job could not be started at all.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct LaunchError {
    what: String,
    source: io::Error,
}

impl JobSettings {
    /// Runs the job to its end. PEs that fail are in the report; see [`JobReport::check`].
    ///
    /// The PEs are this same executable started again, so its `main` begins with
    /// [`crate::pe_entry`].
    ///
    /// # Errors
    /// Only what keeps the job from starting: settings that make no sense, no directory for the
    /// socket, no executable.
    pub fn run(&self) -> Result<JobReport, LaunchError> {
        self.run_with(&mut |_, _, _| {})
    }

    /// As [`JobSettings::run`], and calls `on_told` with the PE, its process and what it has told.
    /// The collective that it joins, and those that it joins afterwards, do not complete before
    /// `on_told` has returned; neither does anything else, so it is to be brief.
    ///
    /// # Errors
    /// See [`JobSettings::run`].
    pub fn run_with(
        &self,
        on_told: &mut dyn FnMut(u32, u32, Told<'_>),
    ) -> Result<JobReport, LaunchError> {
        self.check().map_err(|text| failed("settings", io::Error::other(text)))?;
        let dir = PrivateDir::new("nvshmem-sim")
            .map_err(|e| failed("directory for the job's socket", e))?;
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|e| failed(&format!("the job's socket in {}", dir.path().display()), e))?;
        let socket = path.to_string_lossy();
        let program = std::env::current_exe().map_err(|e| failed("own executable", e))?;

        let mut launcher = Launcher {
            settings: self,
            on_told,
            dir: Some(dir),
            listener,
            strangers: Vec::new(),
            coordinator: Coordinator::new(self.n_pes as usize),
            leftovers: Leftovers::before_job(),
            pes: Vec::new(),
            cause: None,
            first_failure: None,
            started: Instant::now(),
            kill_at: None,
        };
        for pe in 0..self.n_pes {
            launcher.start(pe, &program, &socket);
        }
        launcher.serve();
        Ok(launcher.into_report())
    }
}

fn failed(what: &str, source: io::Error) -> LaunchError {
    LaunchError { what: what.to_string(), source }
}

/// What the environment has for NVSHMEM, libfabric and CUDA's launches.
fn settings_of_environment() -> impl Iterator<Item = (String, OsString)> {
    let variables =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    variables.filter(|(name, _)| is_setting(name))
}

struct Launcher<'a> {
    settings: &'a JobSettings,
    on_told: &'a mut dyn FnMut(u32, u32, Told<'_>),
    /// Where the socket's name is, until every PE has connected: what is removed early does not
    /// stay when the launcher is killed.
    dir: Option<PrivateDir>,
    listener: UnixListener,
    /// Connections that have not said which PE they are.
    strangers: Vec<Link>,
    coordinator: Coordinator,
    leftovers: Leftovers,
    pes: Vec<Pe>,
    /// Why the job has failed, once it has.
    cause: Option<String>,
    first_failure: Option<u32>,
    started: Instant,
    /// When what is left is killed; set when the job has failed.
    kill_at: Option<Instant>,
}

/// A PE's process and what has come from it.
struct Pe {
    process: Option<Process>,
    link: Option<Link>,
    /// What the PE said of itself, or the launcher did to it.
    outcome: Option<Outcome>,
    /// Whether its end has been judged.
    settled: bool,
    output: Vec<(Stream, String)>,
    values: Vec<(String, String)>,
}

impl Launcher<'_> {
    fn start(&mut self, pe: u32, program: &Path, socket: &str) {
        let remote = self.settings.remote_of_pe.get(&pe);
        let mut command = match remote {
            Some(remote) => shell(&remote.agent),
            None => self.command(pe, program, socket),
        };
        if let Some(dir) = &self.dir {
            // Some libraries write a report into the working directory when a process aborts. This
            // one is gone by then, and takes along what was written earlier.
            command.current_dir(dir.path());
        }
        let mut state = Pe {
            process: None,
            link: None,
            outcome: None,
            settled: false,
            output: Vec::new(),
            values: Vec::new(),
        };
        let started = command.spawn().and_then(|mut child| {
            if let Some(remote) = remote {
                self.strangers.extend(self.becomes_pe(pe, remote, &mut child)?);
            }
            Ok(Process::from(child))
        });
        match started {
            Ok(process) => {
                state.process = Some(process);
                self.pes.push(state);
            }
            Err(e) => {
                let shown = command.get_program().to_string_lossy().into_owned();
                state.outcome = Some(Outcome::NotStarted(format!("{shown}: {e}")));
                state.settled = true;
                self.pes.push(state);
                let text = format!("{} could not be started: {shown}: {e}", self.named(pe));
                self.fail(pe as usize, text);
            }
        }
    }

    /// What starts a PE on this host.
    fn command(&self, pe: u32, program: &Path, socket: &str) -> Command {
        let prefix = self.settings.prefix_of_pe.get(&pe).unwrap_or(&self.settings.prefix);
        let mut command = match prefix.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        if !self.settings.inherits_settings {
            for (name, _) in settings_of_environment() {
                command.env_remove(name);
            }
        }
        command
            .envs(self.settings.env_for(pe, socket))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Tells a shell on another host what it is to become. Its streams are the connection then.
    fn becomes_pe(&self, pe: u32, remote: &Remote, shell: &mut Child) -> io::Result<Option<Link>> {
        let (Some(mut input), Some(output)) = (shell.stdin.take(), shell.stdout.take()) else {
            return Ok(None);
        };
        let inherited = settings_of_environment().filter(|_| self.settings.inherits_settings);
        let mut variables: BTreeMap<String, OsString> = inherited.collect();
        variables.extend(self.settings.env_for(pe, STREAMS));
        let variables = variables.iter().map(|(name, value)| (name.as_str(), value.clone()));
        // A shell that has ended already says why on its error stream, and its end is noticed.
        let _ = input.write_all(remote.script(variables).as_bytes());
        Ok(Some(Link::behind_shell(Connection::with(input, output)?)))
    }

    /// A PE, for messages.
    fn named(&self, pe: u32) -> String {
        match self.settings.remote_of_pe.get(&pe) {
            Some(remote) => format!("PE {pe} on {}", remote.host),
            None => format!("PE {pe}"),
        }
    }

    fn serve(&mut self) {
        let may_print = |pe: &Pe| pe.process.as_ref().is_some_and(Process::may_print);
        while !self.pes.iter().all(|pe| pe.settled && !may_print(pe)) {
            self.wait_for_input();
            self.accept();
            for pe in 0..self.pes.len() {
                self.read_pipes(pe);
                self.read_link(pe);
                self.reap(pe);
            }
            self.flush();
            self.keep_deadlines();
        }
    }

    fn wait_for_input(&mut self) {
        let mut fds = vec![pollfd(self.listener.as_raw_fd(), libc::POLLIN)];
        fds.extend(self.strangers.iter().flat_map(Link::pollfds));
        for pe in &self.pes {
            fds.extend(pe.link.iter().filter(|link| link.is_open()).flat_map(Link::pollfds));
            fds.extend(pe.process.iter().flat_map(Process::pollfds));
        }
        poll(&mut fds, Some(TICK));
    }

    fn accept(&mut self) {
        while let Ok((socket, _)) = self.listener.accept() {
            self.strangers.extend(Connection::accepted(socket).map(Link::new));
        }
        let mut at = 0;
        while at < self.strangers.len() {
            self.strangers[at].read();
            let hello = self.strangers[at].next();
            match hello {
                Some(FromPe::Hello(pe)) if (pe as usize) < self.pes.len() => {
                    let mut link = self.strangers.swap_remove(at);
                    if let Some(cause) = &self.cause {
                        link.send(&ToPe::Abort(cause.clone()));
                    }
                    self.pes[pe as usize].link = Some(link);
                    if self.pes.iter().all(|pe| pe.link.is_some()) {
                        self.dir = None;
                    }
                }
                None if self.strangers[at].is_open() => at += 1,
                // Not one of ours, or gone.
                _ => drop(self.strangers.swap_remove(at)),
            }
        }
    }

    fn read_pipes(&mut self, index: usize) {
        let Pe { process: Some(process), output, .. } = &mut self.pes[index] else { return };
        process.read(|stream, line| output.push((stream, line)));
    }

    fn read_link(&mut self, pe: usize) {
        let Some(link) = &mut self.pes[pe].link else { return };
        link.read();
        let process = self.pes[pe].process.as_ref().map(Process::id).unwrap_or_default();
        while let Some(message) = self.pes[pe].link.as_mut().and_then(Link::next) {
            match message {
                FromPe::Hello(_) => {}
                FromPe::Value(key, value) => {
                    (self.on_told)(pe as u32, process, Told::Value(&key, &value));
                    self.pes[pe].values.push((key, value));
                }
                FromPe::Join(op, data) => {
                    let number = self.coordinator.completed();
                    (self.on_told)(pe as u32, process, Told::Joins(number));
                    match self.coordinator.join(pe, op, data) {
                        Ok(None) => {}
                        Ok(Some(results)) => {
                            for (pe, result) in self.pes.iter_mut().zip(results) {
                                if let Some(link) = &mut pe.link {
                                    link.send(&ToPe::Result(result));
                                }
                            }
                        }
                        Err(text) => self.abort(text),
                    }
                }
                FromPe::Finished => {
                    self.pes[pe].outcome = Some(Outcome::Finished);
                    if let Err(text) = self.coordinator.finish(pe) {
                        self.abort(text);
                    }
                }
                FromPe::Failed(text) => {
                    self.fail(pe, format!("{} failed: {text}", self.named(pe as u32)));
                    self.pes[pe].outcome = Some(Outcome::Failed(text));
                }
                FromPe::Panicked(text) => {
                    self.fail(pe, format!("{} panicked: {text}", self.named(pe as u32)));
                    self.pes[pe].outcome = Some(Outcome::Panicked(text));
                }
            }
        }
    }

    /// Notices the end of a process and judges it, after everything it said has been read.
    fn reap(&mut self, index: usize) {
        let pe = &mut self.pes[index];
        let Some(process) = pe.process.as_mut().filter(|_| !pe.settled) else { return };
        let is_news = process.is_running();
        let Some((status, when)) = process.exit() else { return };
        // Judged on a later turn: its last words may still be in the socket.
        if is_news {
            return;
        }
        if pe.link.as_ref().is_some_and(Link::is_open) && when.elapsed() < DRAIN {
            return;
        }
        pe.settled = true;
        let ended = match (status.code(), status.signal()) {
            (Some(code), _) => Outcome::Exited(code),
            (None, signal) => Outcome::Signal(signal.unwrap_or(0)),
        };
        let outcome = pe.outcome.clone();
        let named = self.named(index as u32);
        match outcome {
            // It finished and then ended badly, for instance in a destructor of the plugin.
            Some(Outcome::Finished) if !status.success() => {
                self.fail(index, format!("{named} {ended}, after its scenario had finished"));
                self.pes[index].outcome = Some(ended);
            }
            Some(_) => {}
            None => {
                self.fail(index, format!("{named} {ended}"));
                self.pes[index].outcome = Some(ended);
            }
        }
    }

    fn flush(&mut self) {
        for link in self.pes.iter_mut().filter_map(|pe| pe.link.as_mut()) {
            link.write();
        }
    }

    fn keep_deadlines(&mut self) {
        let now = Instant::now();
        if self.cause.is_none() && now >= self.started + self.settings.deadline {
            let text = format!("the deadline of {:?} has passed", self.settings.deadline);
            self.cause = Some(text);
            self.kill_all(Outcome::TimedOut);
        } else if self.kill_at.is_some_and(|at| now >= at) {
            self.kill_all(Outcome::Stopped);
        }
    }

    fn kill_all(&mut self, outcome: fn(String) -> Outcome) {
        for (index, pe) in self.pes.iter_mut().enumerate() {
            let running = |process: &&mut Process| process.is_running();
            let Some(process) = pe.process.as_mut().filter(running) else { continue };
            // The second time the kill has been sent and the end is on its way.
            if matches!(pe.outcome, Some(Outcome::TimedOut(_) | Outcome::Stopped(_))) {
                continue;
            }
            self.leftovers.note_mapped(process.id());
            process.kill();
            if self.settings.remote_of_pe.contains_key(&(index as u32)) {
                // What was killed may be what has started the PE only. Its input is closed, by
                // which it ends.
                pe.link = None;
            }
            if matches!(pe.outcome, None | Some(Outcome::Finished)) {
                let doing = match pe.outcome {
                    Some(_) => "its scenario had finished, the process had not".to_string(),
                    None => self.coordinator.doing(index),
                };
                pe.outcome = Some(outcome(doing));
            }
        }
    }

    fn fail(&mut self, pe: usize, text: String) {
        self.first_failure.get_or_insert(pe as u32);
        self.abort(text);
    }

    /// Tells every PE that the job has failed. The first reason stays.
    fn abort(&mut self, text: String) {
        if self.cause.is_some() {
            return;
        }
        self.kill_at = Some(Instant::now() + self.settings.grace);
        for link in self.pes.iter_mut().filter_map(|pe| pe.link.as_mut()) {
            link.send(&ToPe::Abort(text.clone()));
        }
        self.cause = Some(text);
    }

    fn into_report(self) -> JobReport {
        let processes = self.pes.iter().filter_map(|pe| pe.process.as_ref());
        let pids: Vec<u32> = processes.map(Process::id).collect();
        let leftovers = self.leftovers.remove(&pids);
        let pes = (0..).zip(self.pes).map(|(pe, state)| PeReport {
            pe,
            outcome: state.outcome.unwrap_or(Outcome::Exited(0)),
            output: state.output,
            values: state.values,
        });
        JobReport {
            pes: pes.collect(),
            first_failure: self.first_failure,
            cause: self.cause,
            leftovers,
            elapsed: self.started.elapsed(),
        }
    }
}
