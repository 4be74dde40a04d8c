//! Datagrams to the control protocol's server: answered or refused, never a panic, and each answer can be read. The same
//! bytes are then taken for the server's answer, by clients that asked for one thing and another.
#![no_main]

use ipvs_netlink::{
    Counter, Envelope, Exchange, Notice, Overview, QueueStatus, Request, RingLevel, memory::Memory, serve,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let backend = Memory::default();
    let counter = Counter { name: "rx_ring_full".into(), value: 1 };
    let ring = RingLevel { name: "rx".into(), used: 1, size: 8192 };
    let queue = QueueStatus { drops: vec![counter; 3], rings: vec![ring; 4], ..QueueStatus::default() };
    backend.set_status(Overview::default(), vec![queue; 3], vec![Notice { text: "a line".into() }]);
    // Every answer is finite: a datagram of bytes bounds the number of its requests, and the table is small.
    for answer in serve(&backend, data) {
        assert!(!answer.is_empty() && answer.len() <= 32 * 1024);
    }
    // A client takes only what has its request's sequence number.
    let seq = data.get(8..12).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes);
    let requests =
        [Request::GetFamily("IPVS".into()), Request::DumpServices, Request::DumpQueues, Request::GetOverview];
    for request in requests {
        let envelope = Envelope { family: 33, seq, pid: 0 };
        if let Ok((mut exchange, _)) = Exchange::new(&request, envelope) {
            let _ = exchange.feed(data, &mut |_| {});
        }
    }
});
