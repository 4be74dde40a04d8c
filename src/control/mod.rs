//! (being written)

pub mod rtnl;
