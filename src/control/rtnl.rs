//! Follows the kernel's links, addresses, routes and neighbours by rtnetlink, and has it resolve next hops.
//!
//! One socket does it all: it subscribes first and reads the tables afterwards, so that nothing can change unseen in
//! between, and what the kernel reports comes in the kernel's order. Where messages were lost (`ENOBUFS`) or the
//! kernel is known to be silent (IPv4 routes that die with a link or an address), the tables are read again. The
//! kernel's own socket buffer is the only queue.
//!
//! Resolving is left to the kernel's neighbour code: it is told that an entry is in use (`NTF_USE`, as `ip neigh …
//! use` does) and asks by ARP or ND with a source address of its own choice on the link.

mod parse;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use self::wire::{Piece, TABLES, Table, dump, encode, solicit, split};
use crate::route::{Event, NeighState, Resync, Routes};
use crate::time::Now;

/// Multicast groups of rtnetlink (`RTNLGRP_*`): link, neigh, and address, route and rule of IPv4 and IPv6.
const GROUPS: [u32; 8] = [1, 3, 5, 7, 8, 9, 11, 19];

/// Room for messages that we have not yet read, in bytes.
const SOCKET_BUFFER: usize = 8 << 20;

/// Larger than any datagram that rtnetlink sends (32 KiB in a dump).
const DATAGRAM: usize = 64 << 10;

/// How often [`Routes::wants`] is asked.
const POLL: Duration = Duration::from_millis(500);
/// Least time between two such questions when next hops are in a hurry.
const HURRY: Duration = Duration::from_millis(20);
/// Wait before the tables are read again, so that a burst of changes costs one reading.
const SETTLE: Duration = Duration::from_millis(200);
/// A reading that has brought nothing for so long has failed.
const STALL: Duration = Duration::from_secs(5);
/// Message type of an error.
const NLMSG_ERROR: u16 = 2;
/// Most different complaints that are logged.
const TOLD_MAX: usize = 256;
/// Wait after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// The follower cannot start.
#[derive(Debug, thiserror::Error)]
pub enum RtnlError {
    /// No socket.
    #[error("cannot open an rtnetlink socket: {0}; the daemon needs it to learn routes and neighbours")]
    Open(#[source] io::Error),
    /// The kernel refuses a subscription.
    #[error("cannot subscribe to rtnetlink group {group}: {source}")]
    Subscribe {
        /// `RTNLGRP_*`.
        group: u32,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A reading of the kernel's tables that is under way.
struct Reading {
    /// Index into [`TABLES`].
    at: usize,
    /// Sequence number of the request.
    sequence: u32,
    started: Instant,
    /// When the kernel last sent something of it.
    heard: Instant,
    /// Something changed under the kernel's hands: the reading may have holes.
    interrupted: bool,
    /// A removal was reported meanwhile, which may have overtaken an older mention.
    removals: bool,
    /// The reading is itself the answer to such removals.
    repeated: bool,
}

/// Follows the kernel's tables for [`Routes`].
pub struct Follower<C> {
    socket: TokioSocket,
    routes: Arc<Routes>,
    clock: C,
    hurry: Arc<Notify>,
    /// Our netlink port: replies to us carry it.
    port: u32,
    sequence: u32,
    reading: Option<Reading>,
    /// When the tables are to be read again.
    read_at: Option<Instant>,
    /// Not before this.
    not_before: Instant,
    repeat: bool,
    /// Which links are up, as last heard.
    up: HashMap<u32, bool>,
    /// What a line was logged for already (kind, and the rule or error); bounded by [`TOLD_MAX`].
    told: HashSet<(u16, u32)>,
}

impl<C: Fn() -> Now> Follower<C> {
    /// Opens the socket in the network namespace of the calling thread, and subscribes. Must be called within a tokio
    /// runtime. `clock` is the one whose ticks the workers note uses with.
    ///
    /// # Errors
    /// The kernel gives no socket, or no subscription.
    pub fn open(routes: Arc<Routes>, clock: C) -> Result<Follower<C>, RtnlError> {
        let mut socket = <TokioSocket as AsyncSocket>::new(NETLINK_ROUTE).map_err(RtnlError::Open)?;
        let inner = socket.socket_mut();
        let port = inner.bind_auto().map_err(RtnlError::Open)?.port_number();
        // Beyond the system's limit only with CAP_NET_ADMIN; with less room we only have to read again more often.
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(&*inner, SOCKET_BUFFER).is_err()
            && let Err(e) = rustix::net::sockopt::set_socket_recv_buffer_size(&*inner, SOCKET_BUFFER)
        {
            tracing::warn!("rtnetlink: receive buffer stays at the system's default: {e}");
        }
        for group in GROUPS {
            inner.add_membership(group).map_err(|source| RtnlError::Subscribe { group, source })?;
        }
        let hurry = Arc::new(Notify::new());
        let wake = Arc::clone(&hurry);
        routes.set_hook(move || wake.notify_one());
        Ok(Follower {
            socket,
            routes,
            clock,
            hurry,
            port,
            sequence: 0,
            reading: None,
            read_at: Some(Instant::now()),
            not_before: Instant::now(),
            repeat: false,
            up: HashMap::new(),
            told: HashSet::new(),
        })
    }

    /// Follows until the future is dropped.
    pub async fn run(mut self) -> std::convert::Infallible {
        let hurry = Arc::clone(&self.hurry);
        let mut poll = interval(POLL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asked = Instant::now();
        let mut buf = Vec::with_capacity(DATAGRAM);
        loop {
            buf.clear();
            tokio::select! {
                got = self.socket.recv_from(&mut buf) => match got {
                    Ok(from) if from.port_number() == 0 => self.datagram(&buf).await,
                    // Only the kernel is listened to.
                    Ok(_) => {}
                    Err(e) => self.lost(&e).await,
                },
                _ = poll.tick() => {
                    self.check_reading();
                    self.ask().await;
                    asked = Instant::now();
                }
                () = hurry.notified() => {
                    sleep_until(asked + HURRY).await;
                    self.ask().await;
                    asked = Instant::now();
                }
                () = at(self.next_reading()) => self.begin_reading().await,
            }
        }
    }

    fn apply(&self, event: Event) {
        self.routes.apply(event, (self.clock)());
    }

    /// Messages were lost, or the socket is in trouble.
    async fn lost(&mut self, e: &io::Error) {
        self.abort_reading();
        if e.raw_os_error() == Some(libc::ENOBUFS) {
            tracing::warn!("rtnetlink: messages were lost, reading the tables again");
            self.read_again(SETTLE);
        } else {
            tracing::error!("rtnetlink: cannot receive: {e}; trying again in {} s", RETRY.as_secs());
            self.read_again(RETRY);
            sleep(RETRY).await;
        }
    }

    fn read_again(&mut self, after: Duration) {
        let when = Instant::now() + after;
        self.read_at = Some(self.read_at.map_or(when, |at| at.min(when)));
    }

    /// When to begin the next reading, if none is under way.
    fn next_reading(&self) -> Option<Instant> {
        if self.reading.is_some() { None } else { self.read_at.map(|at| at.max(self.not_before)) }
    }

    async fn begin_reading(&mut self) {
        let now = Instant::now();
        self.read_at = None;
        self.apply(Event::Resync(Resync::Begin));
        self.reading = Some(Reading {
            at: 0,
            sequence: 0,
            started: now,
            heard: now,
            interrupted: false,
            removals: false,
            repeated: std::mem::take(&mut self.repeat),
        });
        self.request_table().await;
    }

    async fn datagram(&mut self, bytes: &[u8]) {
        for piece in split(bytes) {
            match piece {
                Ok(piece) => self.message(&piece).await,
                Err(left) => {
                    tracing::warn!(
                        "rtnetlink: a message is cut short ({left} bytes), reading the tables again"
                    );
                    self.abort_reading();
                    self.read_again(SETTLE);
                }
            }
        }
    }

    async fn message(&mut self, piece: &Piece<'_>) {
        // Other programs' requests echo their own numbers in what everybody hears.
        let ours = piece.port == self.port;
        let of_reading =
            ours && self.reading.as_ref().is_some_and(|r| r.sequence == piece.sequence && r.sequence != 0);
        if let Some(reading) = self.reading.as_mut().filter(|_| of_reading) {
            reading.heard = Instant::now();
            reading.interrupted |= piece.flags & NLM_F_DUMP_INTR != 0;
        }
        let message = match NetlinkMessage::<RouteNetlinkMessage>::deserialize(piece.bytes) {
            Ok(m) => m,
            Err(e) => {
                if self.tell(piece.kind, 0) {
                    tracing::warn!("rtnetlink: cannot understand a message of type {}: {e}", piece.kind);
                }
                return;
            }
        };
        match message.payload {
            NetlinkPayload::Done(done) if of_reading => match done.code {
                0 => self.table_done().await,
                code => self.dump_error(code).await,
            },
            NetlinkPayload::Error(e) => match e.code {
                None => {}
                Some(code) if of_reading => self.dump_error(code.get()).await,
                Some(code) => self.refused(code.get()),
            },
            NetlinkPayload::Overrun(_) => {
                self.abort_reading();
                self.read_again(SETTLE);
            }
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRule(rule)) => {
                if let Some(priority) = parse::odd_rule(&rule)
                    && self.tell(piece.kind, priority)
                {
                    tracing::warn!(
                        "policy routing rule {priority} is not followed: next hops are looked up in the tables \
                         local, main and default only"
                    );
                }
            }
            NetlinkPayload::InnerMessage(m) => {
                if let Some(event) = parse::event(m, piece.flags) {
                    self.look(&event, of_reading);
                    self.apply(event);
                }
            }
            _ => {}
        }
    }

    /// The kernel has refused something that is not part of a reading: a request to resolve a next hop, whose link may
    /// have gone meanwhile.
    fn refused(&mut self, code: i32) {
        if self.tell(NLMSG_ERROR, code.unsigned_abs()) {
            let e = io::Error::from_raw_os_error(code.saturating_neg());
            tracing::warn!("rtnetlink: the kernel refuses to resolve a next hop: {e}");
        }
    }

    /// Whether a line should be logged about this: once each.
    fn tell(&mut self, kind: u16, detail: u32) -> bool {
        self.told.len() < TOLD_MAX && self.told.insert((kind, detail))
    }

    /// Sees what an event means for the follower itself.
    fn look(&mut self, event: &Event, of_reading: bool) {
        let removal = match event {
            Event::LinkNew(link) => {
                let before = self.up.insert(link.ifindex, link.up);
                // IPv4 routes come and go with a link's state without a word.
                if !of_reading && before.unwrap_or(false) != link.up {
                    self.read_again(SETTLE);
                }
                false
            }
            Event::LinkGone { ifindex } => {
                self.up.remove(ifindex);
                self.read_again(SETTLE);
                true
            }
            Event::AddrGone { .. } => {
                // So do those that have the address as their source.
                self.read_again(SETTLE);
                true
            }
            Event::RouteGone(_) => true,
            Event::NeighGone { .. } => {
                self.hurry.notify_one();
                true
            }
            Event::NeighNew { state: NeighState::Failed, .. } => {
                self.hurry.notify_one();
                false
            }
            _ => false,
        };
        if let Some(reading) = self.reading.as_mut().filter(|_| removal) {
            reading.removals = true;
        }
    }

    /// The kernel could not give a table (completely).
    async fn dump_error(&mut self, code: i32) {
        let table = self.reading.as_ref().and_then(|r| TABLES.get(r.at)).copied();
        let errno = code.saturating_neg();
        // A kernel without IPv6, or without policy routing, has no such table.
        let absent = matches!(errno, libc::EOPNOTSUPP | libc::EAFNOSUPPORT)
            && matches!(table, Some(Table::Routes6 | Table::Rules));
        if absent {
            return self.table_done().await;
        }
        let e = io::Error::from_raw_os_error(errno);
        tracing::warn!("rtnetlink: cannot read the kernel's table {table:?}: {e}; trying again");
        self.fail_reading();
    }

    /// Asks for the table that is next in the reading.
    async fn request_table(&mut self) {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let sequence = self.sequence;
        let Some(reading) = &mut self.reading else { return };
        reading.sequence = sequence;
        let Some(table) = TABLES.get(reading.at) else { return };
        let request = encode(sequence, NLM_F_DUMP, dump(*table));
        if let Err(e) = self.send(&request).await {
            tracing::warn!("rtnetlink: cannot ask for the tables: {e}");
            self.fail_reading();
        }
    }

    /// The kernel has finished with one table.
    async fn table_done(&mut self) {
        let Some(reading) = &mut self.reading else { return };
        reading.at += 1;
        if reading.at < TABLES.len() {
            return self.request_table().await;
        }
        let Some(reading) = self.reading.take() else { return };
        let now = Instant::now();
        // Large tables must not be read all the time.
        self.not_before = now + ((now - reading.started) * 10).max(RETRY);
        if reading.interrupted {
            self.apply(Event::Resync(Resync::Abort));
            self.read_again(SETTLE);
            return;
        }
        self.apply(Event::Resync(Resync::End));
        if reading.removals && !reading.repeated {
            self.repeat = true;
            self.read_again(RETRY);
        }
        self.hurry.notify_one();
    }

    fn abort_reading(&mut self) {
        if self.reading.take().is_some() {
            self.apply(Event::Resync(Resync::Abort));
        }
    }

    fn fail_reading(&mut self) {
        self.abort_reading();
        self.not_before = Instant::now() + RETRY;
        self.read_again(RETRY);
    }

    fn check_reading(&mut self) {
        if self.reading.as_ref().is_some_and(|r| r.heard.elapsed() > STALL) {
            tracing::warn!("rtnetlink: the kernel does not finish a dump, reading the tables again");
            self.fail_reading();
        }
    }

    async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        // A full send buffer would have to be emptied by ourselves: do not wait for it for good.
        match timeout(RETRY, self.socket.send_to(bytes, &SocketAddr::new(0, 0))).await {
            Ok(sent) => sent.map(|_| ()),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Has the kernel resolve and confirm what the workers need.
    async fn ask(&mut self) {
        let wants = self.routes.wants((self.clock)());
        if wants.is_empty() {
            return;
        }
        let bytes: Vec<u8> = wants.iter().flat_map(|w| encode(0, NLM_F_CREATE, solicit(w))).collect();
        if let Err(e) = self.send(&bytes).await {
            tracing::warn!("rtnetlink: cannot have {} next hops resolved: {e}", wants.len());
        }
    }
}

/// Waits for a point in time, or for good.
async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}
