//! From one lvsd to the next without a gap: `lvsd upgrade`.
//!
//! The daemon at work starts its successor, which makes everything that takes time (programs, routes, sockets) while the other one works
//! on. Then, over a socket pair, one byte for each step:
//!
//! ```text
//! successor   R   everything is ready but for connections
//! daemon      G   has ended control, and saved the configuration
//! successor   D   what goes up the rings from now on comes to it
//! daemon      X   has worked off what had come before, and ends
//! ```
//!
//! The successor then takes over the connections ([`crate::engine::Director::adopt`]) and begins with what is in its rings by now. If it fails
//! before `R`, the daemon goes on as if nothing had been.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ipvs_netlink::{Client, ClientError, Reply, Request};
use rustix::process::{Pid, Signal, kill_process};

/// Set for a successor; its standard input is the socket.
const VARIABLE: &str = "LVSD_HANDOVER";
/// How long a successor may take to be ready.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long each later step may take.
const STEP: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

/// Why a handover failed.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The program could not be started.
    #[error("{}: can't be started: {error}", .program.display())]
    Start {
        /// The file.
        program: PathBuf,
        /// What came back.
        error: io::Error,
    },
    /// It ended too early.
    #[error("the new lvsd ended ({0}); its message is in the log")]
    Ended(String),
    /// It took too long.
    #[error("the new lvsd was not ready within {} s", PATIENCE.as_secs())]
    Slow,
    /// The other one does not answer as it should.
    #[error("the other lvsd: {0}")]
    Other(io::Error),
}

/// What a failed attempt's notice begins with; its number follows.
pub const ATTEMPT: &str = "upgrade attempt ";

/// Has the daemon behind a control socket hand over, and waits until another one answers there, whose process id is returned.
///
/// # Errors
/// One line: no daemon, no permission, what the daemon says of its attempt, or that it takes too long.
pub fn request(socket: &Path) -> Result<u32, RequestError> {
    let (old, before) = look(socket)?;
    let pid = i32::try_from(old).ok().and_then(Pid::from_raw).ok_or(RequestError::Silent)?;
    kill_process(pid, Signal::USR2).map_err(|e| RequestError::Signal(old, e.into()))?;
    let since = Instant::now();
    while since.elapsed() < PATIENCE + STEP {
        // between the two nobody may answer
        match look(socket) {
            Ok((new, _)) if new != old => return Ok(new),
            Ok((_, notices)) => {
                let failed = notices.into_iter().find(|n| n.starts_with(ATTEMPT) && !before.contains(n));
                if let Some(why) = failed {
                    return Err(RequestError::Failed(why));
                }
            }
            Err(_) => {}
        }
        std::thread::sleep(LOOK);
    }
    Err(RequestError::Silent)
}

/// The daemon's process id, and its notices.
fn look(socket: &Path) -> Result<(u32, Vec<String>), RequestError> {
    let failed = |e: ClientError| RequestError::Socket(socket.to_owned(), e);
    let mut client = Client::connect(socket, STEP).map_err(failed)?;
    let pid = client.request(&Request::GetOverview).map_err(failed)?.into_iter().find_map(|r| match r {
        Reply::Overview(o) => Some(o.pid),
        _ => None,
    });
    let notices =
        client.request(&Request::DumpNotices).map_err(failed)?.into_iter().filter_map(|r| match r {
            Reply::Notice(n) => Some(n.text),
            _ => None,
        });
    Ok((pid.ok_or(RequestError::Silent)?, notices.collect()))
}

/// Why [`request`] has failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No daemon answers.
    #[error("{}: {}", .0.display(), .1)]
    Socket(PathBuf, ClientError),
    /// It may not be signalled.
    #[error("process {0}: {1}")]
    Signal(u32, io::Error),
    /// It said why not.
    #[error("{0}")]
    Failed(String),
    /// It said nothing.
    #[error("no other lvsd has answered; the log of the one at work says why")]
    Silent,
}

fn expect(channel: &mut UnixStream, what: u8) -> Result<(), HandoverError> {
    let mut byte = [0];
    channel.read_exact(&mut byte).map_err(HandoverError::Other)?;
    if byte[0] == what { Ok(()) } else { Err(HandoverError::Other(io::ErrorKind::InvalidData.into())) }
}

fn say(channel: &mut UnixStream, what: u8) -> Result<(), HandoverError> {
    channel.write_all(&[what]).map_err(HandoverError::Other)
}

/// The next daemon, as the one at work sees it.
#[derive(Debug)]
pub struct Successor {
    child: Child,
    channel: UnixStream,
}

impl Successor {
    /// Starts it: the file that this program was started from, which may have been replaced, with the same arguments.
    ///
    /// # Errors
    /// [`HandoverError::Start`].
    pub fn start(program: PathBuf, arguments: Vec<OsString>) -> Result<Successor, HandoverError> {
        let begin = || -> io::Result<Successor> {
            let (channel, theirs) = UnixStream::pair()?;
            channel.set_read_timeout(Some(LOOK))?;
            let child = Command::new(&program)
                .args(arguments)
                .env(VARIABLE, "1")
                .stdin(Stdio::from(OwnedFd::from(theirs)))
                .spawn()?;
            Ok(Successor { child, channel })
        };
        begin().map_err(|error| HandoverError::Start { program, error })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it is ready. It is ended where it is not.
    ///
    /// # Errors
    /// [`HandoverError`].
    pub fn wait_ready(mut self) -> Result<Successor, HandoverError> {
        let since = Instant::now();
        loop {
            let why = match expect(&mut self.channel, b'R') {
                Ok(()) => {
                    self.channel.set_read_timeout(Some(STEP)).map_err(HandoverError::Other)?;
                    return Ok(self);
                }
                Err(HandoverError::Other(e)) if is_timeout(&e) && since.elapsed() < PATIENCE => continue,
                Err(HandoverError::Other(e)) if is_timeout(&e) => HandoverError::Slow,
                Err(e) => e,
            };
            let killed = self.child.kill();
            let status = self.child.wait();
            return Err(match (why, status) {
                // it had ended by itself before
                (HandoverError::Other(_), Ok(status)) if killed.is_ok() => {
                    HandoverError::Ended(status.to_string())
                }
                (why, _) => why,
            });
        }
    }

    /// Control has ended: has it take over what goes up the rings.
    ///
    /// # Errors
    /// [`HandoverError::Other`].
    pub fn go(&mut self) -> Result<(), HandoverError> {
        say(&mut self.channel, b'G')?;
        expect(&mut self.channel, b'D')
    }

    /// Everything has been worked off.
    ///
    /// # Errors
    /// [`HandoverError::Other`].
    pub fn done(mut self) -> Result<(), HandoverError> {
        say(&mut self.channel, b'X')
    }
}

fn is_timeout(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The daemon that is at work when its successor begins.
#[derive(Debug)]
pub struct Predecessor {
    channel: UnixStream,
}

impl Predecessor {
    /// Whose successor this process is, if it is one.
    ///
    /// # Errors
    /// Where standard input is not what it should be.
    pub fn of_this_process() -> io::Result<Option<Predecessor>> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let channel = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        channel.set_read_timeout(Some(STEP))?;
        Ok(Some(Predecessor { channel }))
    }

    /// Says that all is ready, and waits until the other one has saved the configuration; `turn` is called then, and has what goes up the
    /// rings come to this process. Returns when the other one is at its end.
    ///
    /// # Errors
    /// [`HandoverError::Other`], and that of `turn`.
    pub fn take_over<E: From<HandoverError>>(
        mut self,
        turn: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        say(&mut self.channel, b'R')?;
        expect(&mut self.channel, b'G')?;
        turn()?;
        say(&mut self.channel, b'D')?;
        // that it ends early is no failure of ours: what it had not worked off is lost as after a kill
        let _ = expect(&mut self.channel, b'X');
        // its end of the socket is closed when it has ended, with whatever it had locked
        let mut rest = [0];
        let _ = self.channel.read(&mut rest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (UnixStream, Predecessor) {
        let (daemon, channel) = UnixStream::pair().unwrap();
        daemon.set_read_timeout(Some(STEP)).unwrap();
        channel.set_read_timeout(Some(STEP)).unwrap();
        (daemon, Predecessor { channel })
    }

    #[test]
    fn the_steps_come_in_their_order() {
        let (mut daemon, predecessor) = pair();
        let order = std::sync::Mutex::new(Vec::new());
        let note = |what: &'static str| order.lock().unwrap().push(what);
        std::thread::scope(|s| {
            let (order, note) = (&order, &note);
            s.spawn(move || {
                let turn = || -> Result<(), HandoverError> {
                    note("turn");
                    Ok(())
                };
                predecessor.take_over(turn).unwrap();
                note("alone");
                let _ = order;
            });
            expect(&mut daemon, b'R').unwrap();
            note("saved");
            say(&mut daemon, b'G').unwrap();
            expect(&mut daemon, b'D').unwrap();
            note("worked off");
            say(&mut daemon, b'X').unwrap();
            drop(daemon);
        });
        assert_eq!(*order.lock().unwrap(), ["saved", "turn", "worked off", "alone"]);
    }

    #[test]
    fn a_successor_that_fails_or_is_not_there_is_told_of() {
        let none = Successor::start(PathBuf::from("/no/such/program"), Vec::new()).unwrap_err();
        assert!(none.to_string().starts_with("/no/such/program: can't be started"), "{none}");
        let short = Successor::start(PathBuf::from("/bin/false"), Vec::new()).unwrap();
        let e = short.wait_ready().unwrap_err();
        assert!(matches!(&e, HandoverError::Ended(status) if status.contains('1')), "{e}");
    }

    #[test]
    fn a_daemon_that_dies_early_is_an_error_before_its_turn_only() {
        let (daemon, predecessor) = pair();
        drop(daemon);
        assert!(predecessor.take_over(|| Ok::<(), HandoverError>(())).is_err());
        let (mut daemon, predecessor) = pair();
        std::thread::scope(|s| {
            let over = s.spawn(|| predecessor.take_over(|| Ok::<(), HandoverError>(())));
            expect(&mut daemon, b'R').unwrap();
            say(&mut daemon, b'G').unwrap();
            expect(&mut daemon, b'D').unwrap();
            drop(daemon);
            over.join().unwrap().unwrap();
        });
    }
}
