//! Ports, next hops and the routes to them, as the kernel's tables say.

/// A port of the data path: an index into the director's list of interfaces, stable while the daemon runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct PortId(pub u16);
