//! A job, from the start of its PEs to the report: serves their collectives and judges their ends.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use launcher::{End, Limits, PrivateDir, Process, exports, shell, word};

use super::collective::Collective;
use super::report::{JobReport, Outcome, PeReport};
use crate::link::{self, FromPe, ToPe};
use crate::pe::ENV_PE;
use crate::settings::{JobSettings, is_setting};

/// Where a PE of another host is started, and what is started there.
#[derive(Clone, Debug)]
pub struct Remote {
    pub host: String,
    /// The command that runs on the host the words behind it.
    pub agent: Vec<OsString>,
    pub program: PathBuf,
    /// Directory with `nvshmem_transport_libfabric.so.N`, there.
    pub plugin_dir: PathBuf,
}

/// What the launcher hears from a PE while the job runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told<'a> {
    /// A value that the PE hands over ([`crate::Job::report`]): its name and its text.
    Value(&'a str, &'a str),
    /// The PE joins a collective, the plugin's among them. They are counted from 0.
    Joins(u64),
}

impl JobSettings {
    pub fn run(&self) -> io::Result<JobReport> {
        self.run_with(&mut |_, _, _| {})
    }

    /// As [`JobSettings::run`], and calls `on_told` with the PE, its process and what it has told.
    /// The collective that it joins, and those that it joins afterwards, do not complete before
    /// `on_told` has returned; neither does anything else, so it is to be brief.
    pub fn run_with(&self, on_told: &mut dyn FnMut(u32, u32, Told<'_>)) -> io::Result<JobReport> {
        if self.n_pes == 0 || !self.chunk_bytes.is_power_of_two() {
            return Err(io::Error::other("a job has a PE, and chunks of a power of two of bytes"));
        }
        // Some libraries write a report into the working directory when a process aborts. This one
        // is removed as soon as all PEs are in it, so that none stays when the launcher is killed.
        let dir = PrivateDir::new("nvshmem-sim")?;
        let working_dir = dir.path().to_owned();
        let program = std::env::current_exe()?;
        let started = Instant::now();
        let mut launch = Launch {
            settings: self,
            on_told,
            dir: Some(dir),
            collective: Collective::new(self.n_pes as usize),
            pes: Vec::new(),
            cause: None,
            first_failure: None,
        };
        let mut commands = Vec::new();
        for pe in 0..self.n_pes {
            let (input, command) = self.command(pe, &program, &working_dir)?;
            launch.pes.push(Pe { input, outcome: None, judged: false, values: Vec::new() });
            commands.push(command);
        }
        let limits = Limits { deadline: self.deadline, grace: self.grace };
        let ended = launcher::run(commands, limits, |processes| {
            launch.serve(processes);
            Ok(())
        })?;
        let pes = (0..).zip(launch.pes).zip(ended).map(|((pe, state), ended)| {
            let outcome = state.outcome.unwrap_or(Outcome::Exited(0));
            let output = ended.err.lines().map(str::to_owned).collect();
            PeReport { pe, outcome, output, values: state.values }
        });
        Ok(JobReport {
            pes: pes.collect(),
            first_failure: launch.first_failure,
            cause: launch.cause,
            elapsed: started.elapsed(),
        })
    }

    fn command(&self, pe: u32, program: &Path, dir: &Path) -> io::Result<(UnixStream, Command)> {
        let (mut input, theirs) = UnixStream::pair()?;
        // A PE that is stopped does not keep the launcher.
        input.set_write_timeout(Some(Duration::from_secs(1)))?;
        let inherited = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| is_setting(name));
        let mut command = match self.remote_of_pe.get(&pe) {
            Some(remote) => {
                let mut variables: BTreeMap<String, OsString> = BTreeMap::new();
                variables.extend(inherited.filter(|_| self.inherits_settings));
                variables.extend(self.env_for(pe)?);
                let variables = variables.iter().map(|(name, value)| (&**name, value.clone()));
                let (exports, program) = (exports(variables), word(&remote.program));
                let script = format!("{exports}cd \"${{TMPDIR:-/tmp}}\" && exec {program}\n");
                input.write_all(script.as_bytes())?;
                shell(&remote.agent)
            }
            None => {
                let mut words = self.prefix_of_pe.get(&pe).cloned().unwrap_or_default();
                words.push(program.into());
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                if !self.inherits_settings {
                    inherited.for_each(|(name, _)| _ = command.env_remove(name));
                }
                command.envs(self.env_for(pe)?);
                command
            }
        };
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.current_dir(dir);
        Ok((input, command))
    }

    fn env_for(&self, pe: u32) -> io::Result<BTreeMap<String, OsString>> {
        let all = self.env.iter().chain(self.env_of_pe.get(&pe).into_iter().flatten());
        let mut env: BTreeMap<_, _> =
            all.map(|(name, value)| (name.clone(), value.into())).collect();
        let (mut settings, remote) = (self.clone(), self.remote_of_pe.get(&pe));
        settings.plugin_dir = match remote {
            Some(remote) => remote.plugin_dir.clone(),
            // PEs have a working directory of their own.
            None => std::path::absolute(&self.plugin_dir).unwrap_or_default(),
        };
        let told = (pe, remote.is_some(), self.layout.name(), settings);
        env.insert(ENV_PE.into(), serde_json::to_string(&told)?.into());
        Ok(env)
    }
}

struct Launch<'a> {
    settings: &'a JobSettings,
    on_told: &'a mut dyn FnMut(u32, u32, Told<'_>),
    dir: Option<PrivateDir>,
    collective: Collective,
    pes: Vec<Pe>,
    cause: Option<String>,
    first_failure: Option<u32>,
}

struct Pe {
    input: UnixStream,
    /// What the PE said of itself, until it is judged.
    outcome: Option<Outcome>,
    judged: bool,
    values: Vec<(String, String)>,
}

impl Launch<'_> {
    fn serve(&mut self, processes: &mut [Process]) {
        self.dir = None;
        for (pe, process) in processes.iter_mut().enumerate() {
            for message in process.take_lines().iter().filter_map(|line| link::parse(line)) {
                self.take(pe, process.id(), message);
            }
            if let (false, Some(end)) = (self.pes[pe].judged, process.end()) {
                self.judge(pe, end);
            }
        }
    }

    fn take(&mut self, pe: usize, process: u32, message: FromPe) {
        match message {
            FromPe::Value(name, value) => {
                (self.on_told)(pe as u32, process, Told::Value(&name, &value));
                self.pes[pe].values.push((name, value));
            }
            FromPe::Join(part) => {
                (self.on_told)(pe as u32, process, Told::Joins(self.collective.completed));
                if let Some(all) = self.collective.join(pe, part) {
                    self.tell_all(&ToPe::Gathered(all));
                }
            }
            FromPe::Finished => self.pes[pe].outcome = Some(Outcome::Finished),
            FromPe::Failed(text) => self.fail(pe, Outcome::Failed(text)),
        }
    }

    fn judge(&mut self, pe: usize, end: End) {
        let state = &mut self.pes[pe];
        state.judged = true;
        let has_finished = match &state.outcome {
            None => false,
            Some(Outcome::Finished) => true,
            Some(_) => return,
        };
        match end {
            End::Killed => {
                let doing = match has_finished {
                    true => "its scenario had finished, the process had not".to_owned(),
                    false => self.collective.doing(pe),
                };
                state.outcome = Some(Outcome::Killed(doing));
                let deadline = self.settings.deadline;
                self.cause
                    .get_or_insert_with(|| format!("the deadline of {deadline:?} has passed"));
            }
            End::Exited(0) if has_finished => {}
            // Also a PE that finished and then ended badly, as in a destructor of the plugin.
            End::Exited(code) => self.fail(pe, Outcome::Exited(code)),
            End::Signalled(signal) => self.fail(pe, Outcome::Signal(signal)),
        }
    }

    fn fail(&mut self, pe: usize, outcome: Outcome) {
        let named = match self.settings.remote_of_pe.get(&(pe as u32)) {
            Some(remote) => format!("PE {pe} on {}", remote.host),
            None => format!("PE {pe}"),
        };
        self.first_failure.get_or_insert(pe as u32);
        self.abort(format!("{named} {outcome}"));
        self.pes[pe].outcome = Some(outcome);
    }

    fn abort(&mut self, text: String) {
        if self.cause.is_none() {
            self.tell_all(&ToPe::Abort(text.clone()));
            self.cause = Some(text);
        }
    }

    fn tell_all(&mut self, message: &ToPe) {
        for pe in &self.pes {
            // A PE that is gone is noticed by its end.
            let _ = link::send(&pe.input, message);
        }
    }
}
