//! A worker's loop, whatever its rings are.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::socket::read_option;
use crate::engine::FrameHandler;
use crate::io::SetupError;
use crate::time::Now;

/// Longest sleep: within this time a worker notices anything.
const MAX_SLEEP_NS: u64 = 50_000_000;
/// How often the kernel's counters are read.
const COUNTERS_NS: u64 = 1_000_000_000;

/// Turns without a sleep while flows are about to be handed to the tier: that is done within microseconds as a rule.
const HURRY_TURNS: u32 = 64;
/// Longest sleep when it takes longer.
const GRACE_SLEEP_NS: u64 = 1_000_000;

/// How long a worker that is told to stop goes on with what is in its rings.
const DRAIN_NS: u64 = 100_000_000;

/// What a worker shares with the rest. `S` is what it works with on one interface.
pub(in crate::io) struct Mail<S> {
    pub(in crate::io) stop: AtomicBool,
    /// Written to wake the worker.
    wake: OwnedFd,
    /// Set where the inbox holds something.
    news: AtomicBool,
    /// New sockets for a port (by its place), or none where its interface has gone.
    inbox: Mutex<Vec<(usize, Option<S>)>>,
}

impl<S> Mail<S> {
    pub(in crate::io) fn new() -> Result<Mail<S>, SetupError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| SetupError::os("making an eventfd", "", e.into()))?;
        Ok(Mail { stop: AtomicBool::new(false), wake, news: AtomicBool::new(false), inbox: Mutex::default() })
    }

    pub(in crate::io) fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // a full counter wakes as well
        let _ = rustix::io::write(&self.wake, &one);
    }

    /// Has the worker use other sockets on a port, or none.
    pub(in crate::io) fn tell(&self, place: usize, sockets: Option<S>) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push((place, sockets));
        self.news.store(true, Ordering::Release);
        self.wake();
    }
}

/// A worker's rings on all interfaces.
pub(in crate::io) trait Station: Send {
    /// What it works with on one interface.
    type Sockets: Send + 'static;

    /// One look at each ring; whether there was anything.
    fn turn(&mut self, handler: &mut dyn FrameHandler) -> bool;
    /// Sends what the handler has made by itself.
    fn send_outbox(&mut self, handler: &mut dyn FrameHandler);
    /// Reads the kernel's counters.
    fn read_counters(&mut self);
    /// Takes other sockets on a port, or none.
    fn replace(&mut self, place: usize, sockets: Option<Self::Sockets>);
    /// Adds the descriptors whose readiness ends a sleep.
    fn watch(&self, fds: &mut Vec<libc::pollfd>);
    /// The longest sleep now, nanoseconds.
    fn longest_sleep(&mut self) -> u64 {
        u64::MAX
    }
    /// From here on [`Station::is_over`] waits for what is on its way to the rings now.
    fn begin_grace(&mut self) {}
    /// Whether all that was on its way at [`Station::begin_grace`] has been judged and sent.
    fn is_over(&mut self) -> bool {
        true
    }
}

/// To be read from a descriptor.
pub(in crate::io) fn readable(fd: Option<i32>) -> libc::pollfd {
    libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 }
}

/// Monotonic time.
pub(in crate::io) fn clock() -> Now {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Now(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

pub(in crate::io) struct Worker<S: Station> {
    pub(in crate::io) station: S,
    pub(in crate::io) handler: Box<dyn FrameHandler + Send>,
    pub(in crate::io) mail: Arc<Mail<S::Sockets>>,
    pub(in crate::io) counters_at: u64,
    /// Turns since the station was asked to wait for what is on its way; none where it was not.
    pub(in crate::io) grace: Option<u32>,
}

impl<S: Station> Worker<S> {
    /// Works until it is told to stop.
    pub(in crate::io) fn run(&mut self) {
        while !self.mail.stop.load(Ordering::Acquire) {
            let busy = self.station.turn(self.handler.as_mut());
            let now = clock();
            if self.handler.next_deadline(now) <= now {
                self.handler.tick(now);
                self.station.send_outbox(self.handler.as_mut());
            }
            if now.0 >= self.counters_at {
                self.counters_at = now.0 + COUNTERS_NS;
                self.station.read_counters();
            }
            let hurry = self.hand_over();
            if self.mail.news.load(Ordering::Acquire) {
                self.take_inbox();
            } else if !busy && !hurry {
                self.sleep(now);
            }
        }
        self.drain();
        self.station.read_counters();
    }

    /// Works off what is in the rings, or on its way to them; not for long, since more may come all the time.
    fn drain(&mut self) {
        let end = clock().0 + DRAIN_NS;
        self.station.begin_grace();
        while (self.station.turn(self.handler.as_mut()) || !self.station.is_over()) && clock().0 < end {
            self.station.send_outbox(self.handler.as_mut());
        }
        self.station.send_outbox(self.handler.as_mut());
    }

    /// Hands flows to the tier when that may be; whether it will be soon.
    fn hand_over(&mut self) -> bool {
        if let Some(turns) = self.grace {
            if !self.station.is_over() {
                self.grace = Some(turns.saturating_add(1));
                return turns < HURRY_TURNS;
            }
            self.handler.marks_ready();
        }
        let waiting = self.handler.marks_waiting();
        self.grace = waiting.then_some(0);
        if waiting {
            self.station.begin_grace();
        }
        waiting
    }

    fn sleep(&mut self, now: Now) {
        let longest = if self.grace.is_some() { GRACE_SLEEP_NS } else { MAX_SLEEP_NS };
        let longest = self.station.longest_sleep().min(longest);
        let until = self.handler.next_deadline(now).0.min(now.0.saturating_add(longest));
        let nanoseconds = until.saturating_sub(now.0).min(longest);
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds as i64 };
        let mut fds: Vec<libc::pollfd> = vec![readable(Some(self.mail.wake.as_raw_fd()))];
        self.station.watch(&mut fds);
        // SAFETY: pollfds of our own, as many as we say; no signal mask.
        let n =
            unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &timeout, std::ptr::null()) };
        if n <= 0 {
            return;
        }
        for fd in &fds[1..] {
            if fd.revents & (libc::POLLERR | libc::POLLHUP) != 0 {
                // an interface that went down or away says so once; reading the error lets the next poll sleep
                let mut error: libc::c_int = 0;
                let _ = read_option(fd.fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
            }
        }
        if fds[0].revents != 0 {
            let mut counter = [0; 8];
            let _ = rustix::io::read(&self.mail.wake, &mut counter);
        }
    }

    fn take_inbox(&mut self) {
        self.mail.news.store(false, Ordering::Release);
        let news = std::mem::take(&mut *self.mail.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        for (place, sockets) in news {
            self.station.replace(place, sockets);
        }
    }
}
