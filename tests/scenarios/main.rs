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
mod http;
mod life;
mod not_ours;
mod refusals;
mod udp;

/// A scenario for both families and both forwarding methods: four tests, named so that one can be picked.
macro_rules! matrix {
    ($name:ident) => {
        mod $name {
            use crate::lab::{Family, Mode};
            #[test]
            fn nat_v4() {
                super::$name(Mode::Nat, Family::V4);
            }
            #[test]
            fn nat_v6() {
                super::$name(Mode::Nat, Family::V6);
            }
            #[test]
            fn dr_v4() {
                super::$name(Mode::Dr, Family::V4);
            }
            #[test]
            fn dr_v6() {
                super::$name(Mode::Dr, Family::V6);
            }
        }
    };
}
pub(crate) use matrix;
