//! Scheduling algorithms: which real server takes a new connection.
//!
//! The crate has no dependencies, does no IO and reads no clock. One algorithm is one file; each implements
//! [`Scheduler`] and is listed in the registry under the name that `ipvsadm -s` gives it.
#![forbid(unsafe_code)]

use std::net::IpAddr;

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
}
