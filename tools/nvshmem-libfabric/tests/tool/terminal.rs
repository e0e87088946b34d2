//! A terminal of so many columns, and a command that runs on it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

const ROWS: u16 = 60;

/// A command on a terminal. It is ended with this.
pub(crate) struct OnTerminal {
    child: Child,
    screen: File,
}

impl OnTerminal {
    pub(crate) fn start(mut command: Command, columns: u16) -> io::Result<Self> {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&screen)?;
        unlockpt(&screen)?;
        let size = Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&screen, size)?;
        let name = ptsname(&screen, Vec::new())?;
        let theirs =
            OpenOptions::new().read(true).write(true).open(name.to_string_lossy().as_ref())?;
        command.stdout(theirs.try_clone()?).stderr(theirs);
        Ok(Self { child: command.spawn()?, screen: screen.into() })
    }

    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        match self.screen.read(piece) {
            // Nobody has the other side any more.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                Ok(0)
            }
            read => read,
        }
    }

    pub(crate) fn finish(mut self) -> io::Result<(String, ExitStatus)> {
        let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            match self.read(&mut piece)? {
                0 => break,
                read => seen.extend(&piece[..read]),
            }
        }
        let status = self.child.wait()?;
        Ok((String::from_utf8_lossy(&seen).replace("\r\n", "\n"), status))
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        // It may have ended, and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
