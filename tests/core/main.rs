//! The core under recorded and virtual conditions: whole frames in, whole frames out, no network.
#![allow(unreachable_pub)]

mod admin;
mod adopt;
mod batches;
mod cases;
mod cases_icmp;
mod cases_path;
mod cases_tunnel;
mod cases_vlan;
mod flood;
mod frames;
mod golden;
mod packets;
mod replay;
mod rig;
mod sequences;
mod states;
mod tier;
