//! Where a PE takes descriptors from other processes of its host: a socket without a name in any
//! file system. They are put there before a barrier and taken behind it, so nobody waits for
//! anybody here, and no thread serves it.
//!
//! `pidfd_getfd` would need no socket, but the right to trace the other process, and opening
//! `/proc/PID/fd/N` would open the driver's device anew.
//!
//! Any process of the host's network namespace may come in. Who does not say a token that PEs have
//! told one another by the job's bootstrap is not listened to.

use std::io;
use std::mem::{offset_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

pub(super) const TOKEN_BYTES: usize = 16;

/// Bytes that nobody guesses.
pub(super) type Token = [u8; TOKEN_BYTES];

/// Most visitors that are looked at.
const MOST: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct Room {
    listener: UnixListener,
    name: Token,
}

impl Room {
    pub(super) fn open() -> io::Result<Self> {
        let mut name = [0; TOKEN_BYTES];
        getrandom::fill(&mut name).map_err(io::Error::other)?;
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, name })
    }

    /// Where others find it.
    pub(super) fn name(&self) -> &Token {
        &self.name
    }

    /// What was put there by now, each with its token.
    pub(super) fn take_all(&mut self) -> Vec<(Token, OwnedFd)> {
        let visitors = (0..MOST).map_while(|_| self.listener.accept().ok());
        visitors.filter_map(|(stream, _)| receive(&stream)).collect()
    }
}

/// A control message with one descriptor, as the system has it.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    fd: libc::c_int,
}

/// Its length without padding, in which there is no room for a second descriptor.
const CONTROL_BYTES: usize = offset_of!(Control, fd) + size_of::<libc::c_int>();

/// A message of `token` and `control`, for a call that ends before both do.
fn message(vector: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: numbers and pointers, of which zeros are one.
    let mut message: libc::msghdr = unsafe { zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vector, 1);
    (message.msg_control, message.msg_controllen) = ((&raw mut *control).cast(), CONTROL_BYTES);
    message
}

fn vector(token: &mut Token) -> libc::iovec {
    libc::iovec { iov_base: token.as_mut_ptr().cast(), iov_len: TOKEN_BYTES }
}

/// Puts a descriptor into another process' room. Waits for nothing.
///
/// # Errors
/// As the system answers; `ECONNREFUSED` where the room is in another network namespace.
pub(super) fn hand_over(room: &Token, token: &Token, fd: &OwnedFd) -> io::Result<()> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: numbers alone.
    let raw = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: numbers, of which zeros are one.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // Behind a zero: no file.
    for (to, byte) in address.sun_path[1..].iter_mut().zip(room) {
        *to = *byte as libc::c_char;
    }
    let len = offset_of!(libc::sockaddr_un, sun_path) + 1 + TOKEN_BYTES;
    // SAFETY: an address of that length.
    let status = unsafe { libc::connect(raw, (&raw const address).cast(), len as u32) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    let header = libc::cmsghdr {
        cmsg_len: CONTROL_BYTES,
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SCM_RIGHTS,
    };
    let (mut token, mut control) = (*token, Control { header, fd: fd.as_raw_fd() });
    let mut vector = vector(&mut token);
    let message = message(&mut vector, &mut control);
    // SAFETY: the message and all it points to live until the call has ended.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    if sent == TOKEN_BYTES as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What a visitor has brought, if it is one token and one descriptor.
fn receive(stream: &UnixStream) -> Option<(Token, OwnedFd)> {
    let header = libc::cmsghdr { cmsg_len: 0, cmsg_level: 0, cmsg_type: 0 };
    let (mut token, mut control) = ([0; TOKEN_BYTES], Control { header, fd: -1 });
    let mut vector = vector(&mut token);
    let mut message = message(&mut vector, &mut control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message and all it points to live until the call has ended, and have the room
    // that it says.
    let got = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, flags) };
    let has_fd = message.msg_controllen >= CONTROL_BYTES
        && control.header.cmsg_level == libc::SOL_SOCKET
        && control.header.cmsg_type == libc::SCM_RIGHTS;
    // SAFETY: the system has just opened it for this process; nobody else closes it.
    let fd = has_fd.then(|| unsafe { OwnedFd::from_raw_fd(control.fd) })?;
    (got == TOKEN_BYTES as isize).then_some((token, fd))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, SeekFrom, Write};

    use super::*;

    fn file(text: &str) -> File {
        // SAFETY: a string that ends with a zero; the descriptor is nobody else's.
        let mut file = File::from(unsafe {
            OwnedFd::from_raw_fd(libc::memfd_create(c"room".as_ptr(), libc::MFD_CLOEXEC))
        });
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn text(fd: OwnedFd) -> String {
        let (mut file, mut text) = (File::from(fd), String::new());
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn descriptors_come_with_their_tokens_and_nobody_waits() {
        let mut room = Room::open().unwrap();
        assert!(room.take_all().is_empty());
        for (token, words) in [([1; TOKEN_BYTES], "one"), ([2; TOKEN_BYTES], "two")] {
            hand_over(room.name(), &token, &file(words).into()).unwrap();
        }
        // Visitors that bring nothing, or too little.
        let address = SocketAddr::from_abstract_name(room.name()).unwrap();
        let _silent = UnixStream::connect_addr(&address).unwrap();
        let mut short = UnixStream::connect_addr(&address).unwrap();
        short.write_all(&[3; TOKEN_BYTES]).unwrap();
        let taken: Vec<_> =
            room.take_all().into_iter().map(|(token, fd)| (token[0], text(fd))).collect();
        assert_eq!(taken, [(1, String::from("one")), (2, String::from("two"))]);
        assert!(room.take_all().is_empty());
        let name = *room.name();
        drop(room);
        let gone = hand_over(&name, &name, &file("").into()).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ECONNREFUSED));
    }

    /// Who does not take what comes keeps nobody.
    #[test]
    fn a_full_room_is_an_error_at_once() {
        let room = Room::open().unwrap();
        let (mut refused, fd) = (None, OwnedFd::from(file("")));
        for _ in 0..10_000 {
            match hand_over(room.name(), &[1; TOKEN_BYTES], &fd) {
                Ok(()) => {}
                Err(error) => {
                    refused = error.raw_os_error();
                    break;
                }
            }
        }
        assert_eq!(refused, Some(libc::EAGAIN));
    }
}
