//! Ports, next hops and the routes to them, as the kernel's tables say.
//!
//! Sans-IO: what the kernel reports goes in as [`Event`]s ([`crate::control::rtnl`] makes them), answers come out. All
//! workers share one [`Routes`] by reference.
//!
//! What a look-up costs, and which lock it takes:
//!
//! * [`Routes::get`], once a packet: a few atomic loads from one cache line, no lock. A changed MAC, MTU or link state
//!   shows there, so it takes effect on existing connections.
//! * [`Routes::epoch`], once a packet: one atomic load. As long as it stands still, every [`Routes::lookup`] would give
//!   the answer that it gave before.
//! * [`HopCache`], one for each worker, keeps the answers for destinations that are not kept elsewhere (clients).
//! * [`Routes::lookup`], when the epoch has changed or a destination is new: longest prefix match under a read lock;
//!   the first look-up of a next hop takes the write lock to allocate its line.
//!
//! See `docs/next-hops.md`.
#![forbid(unsafe_code)]

mod cache;
mod event;
mod fib;
mod lines;
mod ports;
mod routes;
mod solicit;
mod state;
#[cfg(test)]
mod tests;

pub use cache::HopCache;
pub use event::{Event, IfAddr, Link, LinkKind, Mac, NeighState, Place, Resync, Route, RouteKind, Via};
pub use routes::{MAX_LINES, Routes};

use std::net::IpAddr;

/// A port of the data path: an index into the director's list of interfaces, stable while the daemon runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct PortId(pub u16);

/// Most ports that a director can have.
pub const MAX_PORTS: usize = 256;

/// A next-hop line: index in the low 16 bits, generation above. An id stays valid as long as it is used at least once
/// in [`LINE_IDLE_SECS`] (unresolved: [`UNRESOLVED_IDLE_SECS`]); later its line may serve another next hop, and
/// [`Routes::get`] answers [`HopState::Gone`]: look up anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct NextHopId(pub u32);

/// Seconds without use after which a next-hop line may be given to another next hop.
pub const LINE_IDLE_SECS: u64 = 600;

/// The same for a next hop that is not resolved: shorter, so that a flood of packets to addresses that nobody has does
/// not take all lines.
pub const UNRESOLVED_IDLE_SECS: u64 = 10;

/// Most neighbours that one call of [`Routes::wants`] names.
pub const WANTS_MAX: usize = 256;

/// State of a next hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum HopState {
    /// Frames can be sent.
    Ready,
    /// Its MAC is not known (yet, or nobody answers): queue a few frames, count the rest, look again.
    Unresolved,
    /// The line is no longer in use, or its link is down or gone: look up anew.
    Gone,
}

/// What a frame needs to reach its next hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// Whether the rest holds; `dst_mac` is all zeros unless `Ready`.
    pub state: HopState,
    /// Where the frame goes out.
    pub port: PortId,
    /// Source MAC: that of the outgoing interface.
    pub src_mac: Mac,
    /// Destination MAC.
    pub dst_mac: Mac,
    /// Largest IP packet in bytes: the smaller of the link's MTU and the route's. 65,535 stands for that and more.
    pub mtu: u16,
}

impl Hop {
    /// What a line that is not in use reads as.
    pub const GONE: Hop =
        Hop { state: HopState::Gone, port: PortId(u16::MAX), src_mac: [0; 6], dst_mac: [0; 6], mtu: 0 };
}

/// Why there is no next hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
pub enum RouteError {
    /// No route matches, or only such as lead over links that are down.
    #[error("no route to the destination")]
    NoRoute,
    /// An `unreachable` route matches.
    #[error("the route to the destination is of type unreachable")]
    Unreachable,
    /// A `prohibit` route matches.
    #[error("the route to the destination is of type prohibit")]
    Prohibited,
    /// A `blackhole` route matches: drop in silence.
    #[error("the route to the destination is of type blackhole")]
    Blackhole,
    /// The destination is an address of this machine.
    #[error("the destination is an address of this machine")]
    Local,
    /// A broadcast, multicast or anycast address.
    #[error("the destination is a broadcast, multicast or anycast address")]
    NotUnicast,
    /// The route leads out of an interface that is not a port of the director.
    #[error(
        "the route to the destination leads over interface {ifindex}, which is not a port of the director"
    )]
    NotOurPort {
        /// That interface.
        ifindex: u32,
    },
    /// All next-hop lines are taken by next hops that were used within the last [`LINE_IDLE_SECS`] seconds.
    #[error("all next-hop lines are in use")]
    TooManyNextHops,
}

/// A port cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PortError {
    /// Its number is not below [`MAX_PORTS`].
    #[error("port {} is beyond the limit of {MAX_PORTS} ports", .0.0)]
    TooMany(PortId),
    /// The number is in use for another interface.
    #[error("port {} is in use for another interface", .0.0)]
    Taken(PortId),
    /// The kernel gave no memory for next-hop lines.
    #[error("no memory for next-hop lines")]
    NoMemory,
}

/// What is known of a port's interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortInfo {
    /// Its name.
    pub name: String,
    /// Its index now; none while there is no such interface.
    pub ifindex: Option<u32>,
    /// Its MAC.
    pub mac: Option<Mac>,
    /// Its MTU in bytes; 0 while there is no such interface.
    pub mtu: u32,
    /// Up and with a carrier.
    pub up: bool,
}

/// A neighbour that the kernel should resolve or confirm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Solicit {
    /// The interface.
    pub ifindex: u32,
    /// The neighbour's address.
    pub addr: IpAddr,
}

/// Sizes and limits, for a status page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RouteStats {
    /// Routes kept.
    pub routes: usize,
    /// Routes that found no room.
    pub routes_refused: u64,
    /// Neighbours kept.
    pub neighbours: usize,
    /// Neighbours that found no room.
    pub neighbours_refused: u64,
    /// MACs of macvlans that found no room on their port.
    pub macs_refused: u64,
    /// Complete readings of the kernel's tables so far.
    pub readings: u64,
    /// Next-hop lines in use.
    pub lines: usize,
    /// Next-hop lines there are.
    pub lines_limit: usize,
}
