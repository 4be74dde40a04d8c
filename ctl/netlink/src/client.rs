use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};

use crate::reply::{self, ReplyError};
use crate::{Af, Envelope, Errno, Family, Message, Reply, Request, TooLong, wire};

/// The answer to one request as it comes in, without IO.
#[derive(Clone, Debug)]
pub struct Exchange {
    family: Family,
    dump: bool,
    seq: u32,
    af: Af,
}

/// Why an exchange ended without its answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The server refused.
    #[error("{0}")]
    Refused(Errno),
    /// The server's answer makes no sense.
    #[error(transparent)]
    Malformed(#[from] ReplyError),
}

impl Exchange {
    /// Starts one: also gives the datagram to send.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn new(request: &Request, envelope: Envelope) -> Result<(Self, Vec<u8>), TooLong> {
        let af = match request {
            Request::DumpDests(key) => key.af(),
            _ => Af::V4,
        };
        let exchange = Self { family: request.family(), dump: request.is_dump(), seq: envelope.seq, af };
        Ok((exchange, request.encode(envelope)?))
    }

    /// Takes a datagram of the server, hands its replies on and says whether it was the last. Messages with another
    /// sequence number are left over from an exchange that was given up, and skipped.
    ///
    /// # Errors
    /// The server's error, or a malformed message.
    pub fn feed(&mut self, datagram: &[u8], each: &mut dyn FnMut(Reply)) -> Result<bool, ExchangeError> {
        let mut rest = datagram;
        while let Some(frame) = wire::next_frame(&mut rest) {
            if frame.seq != self.seq {
                continue;
            }
            match reply::decode_message(&frame, self.family, self.af)? {
                Message::Reply(reply) => each(reply),
                Message::Error(e) => return Err(ExchangeError::Refused(e)),
                Message::Done => return Ok(true),
                Message::Ack if self.dump => {}
                Message::Ack => return Ok(true),
            }
        }
        Ok(false)
    }
}

/// Why a client has no answer. All but [`ClientError::Refused`] name the socket.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("nothing listens on {path}: is lvsd running, and is this its --socket?")]
    NotRunning {
        /// The socket.
        path: PathBuf,
    },
    /// Connecting, sending or receiving failed.
    #[error("{path}: {what}: {source}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// No answer in time.
    #[error("{path}: no answer within {} s", timeout.as_secs_f32())]
    Timeout {
        /// The socket.
        path: PathBuf,
        /// How long it was waited for the next datagram.
        timeout: Duration,
    },
    /// The server closed the connection: it is stopping, or the caller may not administer it.
    #[error("{path}: closed by the server (only root and the daemon's own user may administer it)")]
    Closed {
        /// The socket.
        path: PathBuf,
    },
    /// The server does not know a family.
    #[error("{path}: the server has no family {name}")]
    NoFamily {
        /// The socket.
        path: PathBuf,
        /// The family's name.
        name: &'static str,
    },
    /// The server's answer makes no sense.
    #[error("{path}: {source}")]
    Malformed {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        source: ReplyError,
    },
    /// The request can't be written.
    #[error("request {0}")]
    TooLong(#[from] TooLong),
    /// The server refused.
    #[error("{0}")]
    Refused(Errno),
}

impl ClientError {
    /// The server's error number, if it answered.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            ClientError::Refused(e) => Some(*e),
            _ => None,
        }
    }
}

/// A connection to a server on a Unix `SOCK_SEQPACKET` socket.
#[derive(Debug)]
pub struct Client {
    fd: OwnedFd,
    path: PathBuf,
    timeout: Duration,
    seq: u32,
    ipvs: Option<u16>,
    lvsd: Option<u16>,
    buf: Vec<u8>,
}

/// Largest datagram received: replies are at most 32 KiB, but an error quotes the whole request.
const RECEIVE_MAX: usize = 128 * 1024;

impl Client {
    /// Connects. `timeout` limits the wait for the connection and for each datagram of an answer.
    ///
    /// # Errors
    /// [`ClientError::NotRunning`] or [`ClientError::Io`].
    pub fn connect(path: impl AsRef<Path>, timeout: Duration) -> Result<Self, ClientError> {
        let path = path.as_ref();
        let fail = |what| {
            move |e: rustix::io::Errno| ClientError::Io { path: path.to_owned(), what, source: e.into() }
        };
        let addr = SocketAddrUnix::new(path).map_err(fail("not a socket's path"))?;
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(fail("can't make a socket"))?;
        // A timeout of zero would mean none.
        let timeout = timeout.max(Duration::from_millis(1));
        for id in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&fd, id, Some(timeout)).map_err(fail("can't set a timeout"))?;
        }
        connect(&fd, &addr).map_err(|e| match e {
            rustix::io::Errno::NOENT | rustix::io::Errno::CONNREFUSED => {
                ClientError::NotRunning { path: path.to_owned() }
            }
            rustix::io::Errno::AGAIN => ClientError::Timeout { path: path.to_owned(), timeout },
            e => fail("can't connect")(e),
        })?;
        Ok(Self {
            fd,
            path: path.to_owned(),
            timeout,
            seq: 0,
            ipvs: None,
            lvsd: None,
            buf: vec![0; RECEIVE_MAX],
        })
    }

    /// Asks, and waits for the whole answer.
    ///
    /// # Errors
    /// Any [`ClientError`]; after one other than `Refused` or `NoFamily` the client is of no further use.
    pub fn request(&mut self, request: &Request) -> Result<Vec<Reply>, ClientError> {
        let mut replies = Vec::new();
        self.for_each(request, &mut |reply| replies.push(reply))?;
        Ok(replies)
    }

    /// As [`Client::request`], for answers too long to keep.
    ///
    /// # Errors
    /// As [`Client::request`].
    pub fn for_each(&mut self, request: &Request, each: &mut dyn FnMut(Reply)) -> Result<(), ClientError> {
        let family = self.resolve(request.family())?;
        self.exchange(request, family, each)
    }

    fn resolve(&mut self, family: Family) -> Result<u16, ClientError> {
        let known = match family {
            Family::Ctrl => return Ok(16),
            Family::Ipvs => self.ipvs,
            Family::Lvsd => self.lvsd,
        };
        if let Some(id) = known {
            return Ok(id);
        }
        let mut id = None;
        let asked = self.exchange(&Request::GetFamily(family.name().to_owned()), 16, &mut |reply| {
            if let Reply::Family(f) = reply {
                id = Some(f.id);
            }
        });
        match (asked, id) {
            (Ok(()), Some(id)) => {
                match family {
                    Family::Lvsd => self.lvsd = Some(id),
                    _ => self.ipvs = Some(id),
                }
                Ok(id)
            }
            (Ok(()), None) | (Err(ClientError::Refused(Errno::ENOENT)), _) => {
                Err(ClientError::NoFamily { path: self.path.clone(), name: family.name() })
            }
            (Err(e), _) => Err(e),
        }
    }

    fn exchange(
        &mut self,
        request: &Request,
        family: u16,
        each: &mut dyn FnMut(Reply),
    ) -> Result<(), ClientError> {
        self.seq = self.seq.wrapping_add(1);
        let envelope = Envelope { family, seq: self.seq, pid: 0 };
        let (mut exchange, datagram) = Exchange::new(request, envelope)?;
        self.retry("can't send", |c| send(&c.fd, &datagram, SendFlags::NOSIGNAL))?;
        loop {
            let len = self.retry("can't receive", |c| {
                let (len, _) = recv(&c.fd, &mut c.buf[..], RecvFlags::empty())?;
                Ok(len)
            })?;
            if len == 0 {
                return Err(ClientError::Closed { path: self.path.clone() });
            }
            let datagram = self.buf.get(..len).unwrap_or_default();
            match exchange.feed(datagram, each) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(ExchangeError::Refused(e)) => return Err(ClientError::Refused(e)),
                Err(ExchangeError::Malformed(source)) => {
                    return Err(ClientError::Malformed { path: self.path.clone(), source });
                }
            }
        }
    }

    /// Makes a system call until no signal interrupts it, and tells its failures apart.
    fn retry(
        &mut self,
        what: &'static str,
        mut call: impl FnMut(&mut Self) -> Result<usize, rustix::io::Errno>,
    ) -> Result<usize, ClientError> {
        loop {
            return match call(self) {
                Ok(n) => Ok(n),
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => {
                    Err(ClientError::Timeout { path: self.path.clone(), timeout: self.timeout })
                }
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {
                    Err(ClientError::Closed { path: self.path.clone() })
                }
                Err(e) => Err(ClientError::Io { path: self.path.clone(), what, source: e.into() }),
            };
        }
    }
}
