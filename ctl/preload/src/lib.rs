//! A library for `LD_PRELOAD`: an unmodified `ipvsadm` or `keepalived` talks to lvsd as if to a kernel's IPVS. `lvsctl exec`
//! sets it up; `docs/preload.md` says what it does and what it leaves alone.
//!
//! - A `NETLINK_GENERIC` socket is in truth a Unix socket, connected to the daemon when it is first sent by. Whatever a program
//!   asks of it that a Unix socket does not know is answered here. Other families' sockets are untouched.
//! - `/proc/net/ip_vs*` and `/proc/sys/net/ipv4/vs/*` are read from the daemon into memory when they are opened; a setting is
//!   written when its file is.
//! - Where no daemon answers the program sees what it would see without IPVS in its kernel.
//!
//! Symbols of the C library are replaced, so unsafe code is this crate's business; each block says why it is sound. Nothing here
//! panics, unwinds into C, or holds a lock while it calls into the C library.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod daemon;
pub mod files;
mod link;
pub mod sockets;
mod sys;
mod table;

use std::path::PathBuf;

/// Runs before the program's `main`: the loader calls what stands in this section.
extern "C" fn begin() {
    // SAFETY: the functions are there as long as the process, for nobody unloads a preloaded library.
    unsafe {
        libc::pthread_atfork(Some(table::before_fork), Some(table::after_fork), Some(table::after_fork));
    }
    sockets::inherit();
}

#[used]
// SAFETY: the section holds pointers to functions without arguments that the loader calls once.
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Names the daemon's socket.
const SOCKET_VAR: &str = "LVSD_SOCKET";
const DEFAULT_SOCKET: &str = "/run/lvsd.sock";

/// The daemon's socket.
fn socket_path() -> PathBuf {
    std::env::var_os(SOCKET_VAR)
        .filter(|s| !s.is_empty())
        .map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from)
}
