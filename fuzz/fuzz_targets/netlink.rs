//! Datagrams to the control protocol's server: answered or refused, never a panic, and each answer can be read.
#![no_main]

use ipvs_netlink::{memory::Memory, serve};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let backend = Memory::default();
    // Every answer is finite: a datagram of bytes bounds the number of its requests, and the table is small.
    for answer in serve(&backend, data) {
        assert!(!answer.is_empty() && answer.len() <= 32 * 1024);
    }
});
