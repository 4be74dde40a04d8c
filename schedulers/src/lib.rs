//! Scheduling algorithms: which real server takes a new connection.
//!
//! The crate has no dependencies, does no IO and reads no clock. One algorithm is one file; each implements
//! [`Scheduler`] and is listed in the registry under the name that `ipvsadm -s` gives it.
#![forbid(unsafe_code)]

mod dh;
mod error;
mod fo;
mod hash;
mod lc;
mod maglev;
mod mh;
mod nq;
mod ovf;
mod plan;
mod registry;
mod rr;
mod sed;
mod sh;
mod wlc;
mod wrr;

pub use error::{CreateError, TableSizeError};
pub use maglev::{DEFAULT_TABLE_SIZE, MAX_TABLE_SIZE};
pub use plan::{Built, Plan};
pub use registry::{Algorithm, Flag, FlagName, create, find, names, parse_flag};
use std::net::IpAddr;

/// What may be chosen about a scheduler when it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `sh-fallback`, `mh-fallback` (`IP_VS_SVC_F_SCHED1`): look for another server where the hashed one takes no new
    /// connections.
    pub fallback: bool,
    /// `sh-port`, `mh-port` (`IP_VS_SVC_F_SCHED2`): hash the client's port too.
    pub port: bool,
    /// Slots of the table of `maglev`: a prime, larger than the number of servers, at most
    /// [`MAX_TABLE_SIZE`]; `None`: [`DEFAULT_TABLE_SIZE`].
    pub table_size: Option<u32>,
}

/// What is known of a new connection when its server is chosen. Addresses and ports as on the wire, ports in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The client's address (after the persistence mask, where a template is being made).
    pub client: IpAddr,
    /// The client's port; 0 where the protocol has none.
    pub client_port: u16,
    /// The virtual address, that is the packet's destination.
    pub virt: IpAddr,
    /// The virtual port.
    pub virt_port: u16,
}

/// What a scheduler may know of one server at the moment of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Relative capacity, 0 to 2^31-1; 0: takes no new connections.
    pub weight: u32,
    /// Connections in an active state.
    pub active: u32,
    /// Connections in an inactive state.
    pub inactive: u32,
    /// The upper threshold is reached: takes no new connections.
    pub overloaded: bool,
}

impl Load {
    /// Whether it takes new connections.
    pub fn is_available(&self) -> bool {
        self.weight > 0 && !self.overloaded
    }

    /// IPVS's measure of work: an active connection counts 256, and every connection, active or not, 1 more.
    pub fn overhead(&self) -> u64 {
        u64::from(self.active) * 257 + u64::from(self.inactive)
    }
}

/// A service's servers in the order in which IPVS visits them: the newest first.
pub trait Servers {
    /// How many there are.
    fn len(&self) -> usize;
    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The state of server `index` now. `index` < `len()`.
    fn load(&self, index: usize) -> Load;
    /// The server's address and port: what makes it the same server after a restart or on another director.
    fn identity(&self, index: usize) -> (IpAddr, u16);
    /// The weight that was last given to the server, setting it to 0 not counted: what `mh` shares its table by, so
    /// that a server set to 0 keeps its slots. 0 where it was added with weight 0 and has never had another.
    fn last_weight(&self, index: usize) -> u32 {
        self.load(index).weight
    }
}

/// A scheduling algorithm at work for one service. Shared by all workers under the service's lock.
pub trait Scheduler: Send {
    /// Chooses a server for a new connection: an index into `servers`, or `None` where no server may take it.
    fn pick(&mut self, servers: &dyn Servers, flow: &Flow) -> Option<usize>;
    /// A server was inserted at `index` (others moved up by one). `servers` is the list after the insertion.
    fn added(&mut self, servers: &dyn Servers, index: usize) {
        let _ = (servers, index);
    }
    /// The server that was at `index` is gone (later ones moved down by one). `servers` is the list after the removal.
    fn removed(&mut self, servers: &dyn Servers, index: usize) {
        let _ = (servers, index);
    }
    /// The weight of the server at `index` was set.
    fn changed(&mut self, servers: &dyn Servers, index: usize) {
        let _ = (servers, index);
    }
    /// Whether the choice depends on the flow and the servers alone, not on earlier choices: then all segments of a
    /// connection get the same server without anybody's memory of it, while servers and weights stay as they are and none
    /// is overloaded.
    fn is_consistent(&self) -> bool {
        false
    }
    /// Does now what the changes since the last pick left to do, so that the next pick need not: worth calling after a
    /// batch of changes. Picks are the same without it.
    fn prepare(&mut self, servers: &dyn Servers) {
        let _ = servers;
    }
    /// The same where others wait for the scheduler: what takes long, as a plan that needs neither the scheduler nor the
    /// servers. From this call until what came of the plan is [installed](Scheduler::install), picks are made from what was there before the
    /// changes, but never of a server that is gone or takes no connections. None where there is nothing to do that takes long.
    fn plan(&mut self, servers: &dyn Servers) -> Option<Plan> {
        let _ = servers;
        None
    }
    /// Takes in what came of the last plan, and leaves in its place what is not needed any more (to be dropped where nobody waits).
    /// Where more has changed since, nothing: that wants a plan of its own.
    fn install(&mut self, built: &mut Built) {
        let _ = built;
    }
}

/// Whether `number` is a prime. Takes at most 32,768 divisions.
pub const fn is_prime(number: u32) -> bool {
    if number < 4 || number.is_multiple_of(2) {
        return number == 2 || number == 3;
    }
    let mut divisor = 3;
    while divisor <= number / divisor {
        if number.is_multiple_of(divisor) {
            return false;
        }
        divisor += 2;
    }
    true
}

/// The greatest common divisor; of 0 and another number, that number.
pub(crate) const fn gcd(a: u32, b: u32) -> u32 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
