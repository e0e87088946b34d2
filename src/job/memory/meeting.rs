//! Sockets by which PEs of one host pass descriptors to each other.
//!
//! A PE listens under one random name among the abstract names of its network namespace, and in
//! `/dev/shm` if peers of its host are in other ones. Nobody waits for anybody: all connect and
//! send between two collectives, and read what was sent after the second one. Of the peer the
//! kernel tells the user and, unless a PID namespace hides it, the process.
//!
//! Any user can connect to an abstract name. Other users' connections are never read, and a thread
//! closes all, since closing a descriptor blocks for as long as its sender likes (`SO_LINGER`).

use std::fs::{self, Permissions};
use std::io;
use std::mem::{offset_of, size_of, take, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::mpsc::{Sender, channel};

use log::warn;

use crate::logging;
use engine::ids::Pe;
use ofi::SOCKET_PREFIX;
use ofi::posix_signals::spawn;

/// A peer's process (`pidfd_open`), unless this PID namespace hides it, and what failed.
pub(super) type Met = (Option<OwnedFd>, Result<(), String>);

const CROWDED: &str = "too many connections to the socket by which PEs of this host share bounce memory, which any user can \
                       reach: no more are accepted, and what is not shared goes through the fabric";

/// The sockets at which a PE listens.
#[derive(Debug)]
pub(super) struct Meeting {
    file: Option<String>,
    /// This process's user, unless it also stands for the unknown ones of a user namespace.
    user: Option<u32>,
    /// Each with the number of connections that it may still accept.
    listeners: Vec<(UnixListener, u32)>,
    /// Connections of this user's processes, which send one descriptor each.
    peers: Vec<UnixStream>,
    /// Descriptors, each with the PE that it claims to be from.
    received: Vec<(Pe, OwnedFd)>,
    closing: Sender<OwnedFd>,
}

impl Meeting {
    /// Listens for the PEs of this host, of which there are `here`.
    pub(super) fn new(name: u64, here: u32, in_files: bool) -> Self {
        let (closing, closed) = channel();
        // Without the thread nobody receives, and what is sent is closed at once.
        let _ = spawn("nvshmem-close", move || closed.into_iter().for_each(drop));
        let file = in_files.then(|| in_files_at(name));
        let abstract_name = SocketAddr::from_abstract_name(format!("{SOCKET_PREFIX}{name:016x}"));
        let bind = |path: &String| {
            let listener = UnixListener::bind(path)?;
            fs::set_permissions(path, Permissions::from_mode(0o600)).map(|()| listener)
        };
        let all = [
            abstract_name.and_then(|name| UnixListener::bind_addr(&name)).ok(),
            file.as_ref().and_then(|path| bind(path).ok()),
        ];
        let all = all.into_iter().flatten().filter(|one| one.set_nonblocking(true).is_ok());
        let listeners = all.map(|one| (one, 2 * here + 64)).collect();
        let (peers, received) = (Vec::new(), Vec::new());
        Self { file, user: own_user(), listeners, peers, received, closing }
    }

    /// Connects to a peer's sockets and sends it the descriptor as one of `me`: the peer has it
    /// even if this process ends.
    pub(super) fn meet(&self, me: Pe, name: u64, own: Option<RawFd>) -> Met {
        let mut why = Vec::new();
        let network = format!("\0{SOCKET_PREFIX}{name:016x}");
        for (place, path) in [("the network", network), ("/dev/shm", in_files_at(name))] {
            let tried = connect(&path).map_err(|error| error.to_string()).and_then(|socket| {
                let met = process_of(&socket, self.user).map(|process| {
                    let sent = own.map_or(Ok(()), |fd| send(&socket, me, fd));
                    let sent = sent.map_err(|error| format!("sending the descriptor: {error}"));
                    (watch(process), sent)
                });
                self.close(socket);
                met
            });
            match tried {
                Ok(met) => return met,
                Err(error) => why.push(format!("its socket in {place}: {error}")),
            }
        }
        (None, Err(why.join("; ")))
    }

    /// Reads what has arrived.
    pub(super) fn receive(&mut self) {
        for (listener, left) in &mut self.listeners {
            while let Some((peer, _)) = (*left > 0).then(|| listener.accept().ok()).flatten() {
                *left -= 1;
                if *left == 0 {
                    warn!(target: logging::MEM, "{CROWDED}");
                }
                match process_of(&peer, self.user) {
                    Ok(_) => self.peers.push(peer),
                    Err(_) => _ = self.closing.send(peer.into()),
                }
            }
        }
        for peer in take(&mut self.peers) {
            match receive(&peer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.peers.push(peer),
                found => {
                    self.received.extend(found.ok().flatten());
                    self.close(peer);
                }
            }
        }
    }

    /// Returns what arrived under the name of a PE, which any process of the user may have sent.
    pub(super) fn received(&self, from: Pe) -> impl Iterator<Item = &OwnedFd> {
        self.received.iter().filter(move |(of, _)| *of == from).map(|(_, fd)| fd)
    }

    fn close(&self, fd: impl Into<OwnedFd>) {
        let _ = self.closing.send(fd.into());
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        // It is not there if it could not be made.
        let _ = self.file.as_ref().map(fs::remove_file);
        take(&mut self.listeners).into_iter().for_each(|(listener, _)| self.close(listener));
        take(&mut self.peers).into_iter().for_each(|peer| self.close(peer));
        take(&mut self.received).into_iter().for_each(|(_, fd)| self.close(fd));
    }
}

fn in_files_at(name: u64) -> String {
    format!("/dev/shm/{SOCKET_PREFIX}{name:016x}")
}

fn own_user() -> Option<u32> {
    let unknown = fs::read_to_string("/proc/sys/kernel/overflowuid");
    let unknown = unknown.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(65534);
    // SAFETY: a call without arguments.
    Some(unsafe { libc::geteuid() }).filter(|user| *user != unknown)
}

/// Returns the process at the other end if it is of this user; 0 if it is in a PID namespace that
/// this process does not see.
fn process_of(socket: &impl AsRawFd, user: Option<u32>) -> Result<u32, String> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: an open socket, and a structure of ours with its length.
    let status = unsafe {
        let into = (&raw mut found).cast();
        libc::getsockopt(socket.as_raw_fd(), level, option, into, &raw mut len)
    };
    succeeded(status as isize).map_err(|error| error.to_string())?;
    let stranger = || format!("user {} there is not known to be that of this PE", found.uid);
    (user == Some(found.uid)).then_some(found.pid as u32).ok_or_else(stranger)
}

fn watch(process: u32) -> Option<OwnedFd> {
    // SAFETY: takes numbers. The descriptor is close-on-exec.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process as libc::c_long, 0) };
    // SAFETY: just opened, and owned by nobody else.
    succeeded(fd as isize).ok().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn succeeded(status: isize) -> io::Result<RawFd> {
    (status >= 0).then_some(status as RawFd).ok_or_else(io::Error::last_os_error)
}

/// Connects without waiting, which std's `connect` does while a listener's queue is full.
fn connect(path: &str) -> io::Result<OwnedFd> {
    // SAFETY: zeros are values of it.
    let mut to: libc::sockaddr_un = unsafe { zeroed() };
    to.sun_family = libc::AF_UNIX as libc::sa_family_t;
    to.sun_path.iter_mut().zip(path.bytes()).for_each(|(to, byte)| *to = byte as libc::c_char);
    let len = (offset_of!(libc::sockaddr_un, sun_path) + path.len()) as libc::socklen_t;
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a new socket, owned by nobody else, and an address of that length.
    unsafe {
        let socket = succeeded(libc::socket(libc::AF_UNIX, kind, 0) as isize)?;
        let socket = OwnedFd::from_raw_fd(socket);
        let status = libc::connect(socket.as_raw_fd(), (&raw const to).cast(), len);
        succeeded(status as isize).map(|_| socket)
    }
}

fn send(socket: &OwnedFd, me: Pe, fd: RawFd) -> io::Result<()> {
    transfer(socket.as_raw_fd(), &mut me.0.to_le_bytes(), Some(fd)).map(drop)
}

fn receive(socket: &UnixStream) -> io::Result<Option<(Pe, OwnedFd)>> {
    let mut from = [0; 4];
    let received = transfer(socket.as_raw_fd(), &mut from, None)?;
    // SAFETY: just received, and owned by nobody else.
    let owned = received.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(owned.map(|fd| (Pe(u32::from_le_bytes(from)), fd)))
}

/// A header and one descriptor; the kernel drops what does not fit.
#[repr(C)]
struct Control(libc::cmsghdr, RawFd);

/// Sends this descriptor, or receives one.
fn transfer(socket: RawFd, from: &mut [u8; 4], sent: Option<RawFd>) -> io::Result<Option<RawFd>> {
    const RECEIVE: i32 = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    const BYTES: usize = offset_of!(Control, 1) + size_of::<RawFd>();
    let mut part = libc::iovec { iov_base: from.as_mut_ptr().cast(), iov_len: from.len() };
    // SAFETY: zeros are values of both.
    let (mut control, mut message): (Control, libc::msghdr) = unsafe { (zeroed(), zeroed()) };
    let rights = (BYTES, libc::SOL_SOCKET, libc::SCM_RIGHTS);
    if let Some(fd) = sent {
        (control.0.cmsg_len, control.0.cmsg_level, control.0.cmsg_type) = rights;
        control.1 = fd;
    }
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = ((&raw mut control).cast(), BYTES);
    // SAFETY: an open socket, and buffers that outlive the call.
    let moved = unsafe {
        match sent {
            Some(_) => libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL),
            None => libc::recvmsg(socket, &raw mut message, RECEIVE),
        }
    };
    succeeded(moved)?;
    let header = (control.0.cmsg_len, control.0.cmsg_level, control.0.cmsg_type);
    Ok((header == rights).then_some(control.1))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::logging::heard::heard;

    fn meeting(here: u32) -> (u64, Meeting) {
        let mut name = [0; 8];
        getrandom::fill(&mut name).unwrap();
        let name = u64::from_le_bytes(name);
        (name, Meeting::new(name, here, true))
    }

    /// Returns a socket whose close waits for the other one to read.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let linger = libc::linger { l_onoff: 1, l_linger: 3600 };
        let (level, option) = (libc::SOL_SOCKET, libc::SO_LINGER);
        // SAFETY: an open socket, and a structure with its length.
        let status = unsafe {
            let linger = (&raw const linger).cast();
            libc::setsockopt(sender.as_raw_fd(), level, option, linger, 8)
        };
        assert_eq!(status, 0);
        sender.set_nonblocking(true).unwrap();
        while io::Write::write(&mut &sender, &[1; 1 << 16]).is_ok() {}
        (sender, listener.accept().unwrap().0)
    }

    /// Whether read, refused, or still in the listener's queue.
    #[test]
    fn lingering_descriptors_block_nothing() {
        for (user, reads) in [(own_user(), true), (None, true), (own_user(), false)] {
            let (name, mut meeting) = meeting(1);
            let (sender, reader) = lingering();
            let socket = connect(&in_files_at(name)).unwrap();
            send(&socket, Pe(7), sender.as_raw_fd()).unwrap();
            drop((socket, sender));
            let (done, is_done) = channel();
            thread::spawn(move || {
                meeting.user = user;
                if reads {
                    meeting.receive();
                    assert_eq!(meeting.received(Pe(7)).count(), usize::from(user.is_some()));
                }
                drop(meeting);
                let _ = done.send(());
            });
            is_done.recv_timeout(Duration::from_secs(30)).expect("the close is elsewhere");
            drop(reader);
        }
    }

    #[test]
    fn connections_are_bounded() {
        let (name, mut meeting) = meeting(3);
        let path = format!("\0{SOCKET_PREFIX}{name:016x}");
        let many: Vec<OwnedFd> = (0..100).map(|_| connect(&path).unwrap()).collect();
        let warnings = heard(|| (0..2).for_each(|_| meeting.receive())).1;
        assert_eq!(
            (meeting.peers.len(), warnings.matches("WARN").count()),
            (70, 1),
            "{warnings:?}"
        );
        // The file, which is the user's alone, is still accepted from.
        let mode = fs::metadata(in_files_at(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let last = connect(&in_files_at(name)).unwrap();
        meeting.receive();
        assert_eq!(meeting.peers.len(), 71);
        drop((many, last));
        meeting.receive();
        assert!(meeting.peers.is_empty(), "what was read is closed");
    }

    #[test]
    fn processes_are_known_without_memory() {
        let ((name, there), (_, mut me)) = (meeting(2), meeting(2));
        let (process, sent) = me.meet(Pe(1), name, Some(-1));
        assert!(process.is_some() && sent.unwrap_err().contains("Bad file descriptor"));
        me.user = None;
        let (process, sent) = me.meet(Pe(1), name, None);
        let why = sent.unwrap_err();
        assert!(process.is_none() && why.matches("not known").count() == 2, "{why}");
        drop(there);
    }
}
