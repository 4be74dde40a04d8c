//! Scenarios: the built daemon between real clients and real servers, in network namespaces.
//!
//! ```text
//! Lab::nat: two segments, the director between them
//!
//!   client ---------------- director ---------------- bridge ---+-- s1  RIP 10.0.0.11   2001:db8:a::11
//!   CIP 198.51.100.10       VIP 192.0.2.10    DIP 10.0.0.1      +-- s2  RIP 10.0.0.12   2001:db8:a::12
//!       2001:db8:c::10      2001:db8:0:1::10  2001:db8:a::1     +-- s3  RIP 10.0.0.13   2001:db8:a::13
//!       gateway: director                                            gateway: director
//!
//! Lab::dr: one segment; the servers have the VIP on lo, do not answer ARP for it, and reply past the director
//!
//!   client --+---------- bridge ----------+-- s1  RIP 192.0.2.11  2001:db8:0:1::11  VIP on lo
//!            |             |              +-- s2  RIP 192.0.2.12  2001:db8:0:1::12  VIP on lo
//!   CIP 192.0.2.100     director          +-- s3  RIP 192.0.2.13  2001:db8:0:1::13  VIP on lo
//!   2001:db8:0:1::100   VIP 192.0.2.10  2001:db8:0:1::10
//!                       DIP 192.0.2.1   2001:db8:0:1::1
//!
//! Tunnels: as Lab::dr; the director sends to the RIP, where `lvsctl realserver decap` has put the decapsulator on s0
//! ```
//!
//! Every device is a veth with the offloads that the kernel gives it; a test that wants other ones says so. Names are
//! unique (process and counter), so tests run beside each other, and guards remove everything, also when a test fails.
//! Without root, or where the kernel lacks a feature, a test says `SKIP` and why; with `CI=true` it fails instead.
#![forbid(unsafe_code)]

mod capture;
mod client;
mod director;
mod lab;
mod netns;
mod probe;
mod servers;
mod spread;
mod wait;

mod selftest;

mod arp;
mod bulk;
mod daemon;
mod datapaths;
mod http;
mod icmp;
mod keepalived;
mod life;
mod live;
mod not_ours;
mod operator;
mod queues;
mod realserver;
mod refusals;
mod soak;
mod survival;
mod tunnel;
mod udp;

/// One test of a scenario.
macro_rules! one {
    ($name:ident, $test:ident, $mode:ident, $family:ident) => {
        #[test]
        fn $test() {
            super::$name(crate::lab::Mode::$mode, crate::lab::Family::$family);
        }
    };
}
pub(crate) use one;

/// A scenario for both families with NAT and DR, or with `tunnels`, or with `all`: tests named so that one can be picked.
macro_rules! matrix {
    ($name:ident) => {
        mod $name {
            crate::one!($name, nat_v4, Nat, V4);
            crate::one!($name, nat_v6, Nat, V6);
            crate::one!($name, dr_v4, Dr, V4);
            crate::one!($name, dr_v6, Dr, V6);
        }
    };
    ($name:ident, tunnels) => {
        mod $name {
            crate::one!($name, ipip_v4, Ipip, V4);
            crate::one!($name, ipip_v6, Ipip, V6);
            crate::one!($name, gre_v4, Gre, V4);
            crate::one!($name, gre_v6, Gre, V6);
        }
    };
    ($name:ident, all) => {
        mod $name {
            crate::one!($name, nat_v4, Nat, V4);
            crate::one!($name, nat_v6, Nat, V6);
            crate::one!($name, dr_v4, Dr, V4);
            crate::one!($name, dr_v6, Dr, V6);
            crate::one!($name, ipip_v4, Ipip, V4);
            crate::one!($name, ipip_v6, Ipip, V6);
            crate::one!($name, gre_v4, Gre, V4);
            crate::one!($name, gre_v6, Gre, V6);
        }
    };
}
pub(crate) use matrix;
