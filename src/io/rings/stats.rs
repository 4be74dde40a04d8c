use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ipvs_netlink::{Counter as Named, QueueStatus, RingLevel, Traffic};

use crate::route::PortId;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one worker on one interface.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct QueueStats { $($(#[$doc])* pub $name: u64,)* }

        /// The same, written by one worker and read by anyone.
        #[derive(Debug, Default)]
        pub(in crate::io) struct Counters {
            $(pub(in crate::io) $name: Counter,)*
            /// Slots of the receive ring.
            pub(in crate::io) ring_size: AtomicU32,
            /// The most of them that waited for the worker at one time within the last second.
            pub(in crate::io) ring_used: AtomicU32,
        }

        impl Counters {
            pub(in crate::io) fn read(&self) -> QueueStats {
                QueueStats { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }

        impl QueueStats {
            /// Name and value of each.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }

        impl std::ops::AddAssign for QueueStats {
            fn add_assign(&mut self, other: QueueStats) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Frames taken from the ring.
    rx_frames,
    /// Bytes of them.
    rx_bytes,
    /// Frames that the kernel could not put into the ring, because it was full.
    rx_ring_full,
    /// Frames longer than the ring could hold, dropped.
    rx_truncated,
    /// Super-packets whose segment size XDP does not tell, dropped.
    rx_super_packet,
    /// Frames that the kernel dropped because it had no buffer for them, or none long enough.
    rx_no_buffer,
    /// Descriptors that kernel or worker found to be invalid.
    rx_invalid,
    /// Frames sent.
    tx_frames,
    /// Bytes of them.
    tx_bytes,
    /// Frames dropped because the interface's queue or the socket's buffer stayed full.
    tx_full,
    /// Frames dropped because they were longer than the interface's MTU.
    tx_too_big,
    /// Frames dropped because the interface was down or gone.
    tx_down,
    /// Frames dropped because the kernel refused them, or because their checksum or GSO note did not fit them.
    tx_refused,
    /// Frames that the kernel found at an impossible place of the memory.
    tx_invalid,
    /// Frames whose verdict named a port that is not there; counted where they came in.
    tx_no_port,
    /// Frames put back into the kernel's stack.
    passed,
    /// Frames that should have been put back and were not.
    pass_dropped,
    /// Frames that the handler gave no verdict for; dropped.
    no_verdict,
}

/// A counter with a single writer.
#[derive(Debug, Default)]
pub(in crate::io) struct Counter(pub(in crate::io) AtomicU64);

impl Counter {
    pub(in crate::io) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
}

impl QueueStats {
    /// Frames that the port dropped, by reason.
    pub fn drops(&self) -> Vec<Named> {
        const OTHERS: [&str; 5] = ["rx_frames", "rx_bytes", "tx_frames", "tx_bytes", "passed"];
        let drops = self.named().into_iter().filter(|(name, _)| !OTHERS.contains(name));
        drops.map(|(name, value)| Named { name: name.to_owned(), value }).collect()
    }
}

impl Counters {
    /// The row of `lvsctl status`, without rates; no mode: the interface is gone.
    pub(in crate::io) fn status(
        &self,
        datapath: &str,
        interface: &str,
        queue: u32,
        mode: Option<&str>,
    ) -> QueueStatus {
        let stats = self.read();
        let level = |a: &AtomicU32| a.load(Ordering::Relaxed).into();
        let rx =
            RingLevel { name: "rx".to_owned(), used: level(&self.ring_used), size: level(&self.ring_size) };
        QueueStatus {
            interface: interface.to_owned(),
            queue,
            attached: mode.is_some(),
            datapath: datapath.to_owned(),
            mode: mode.unwrap_or_default().to_owned(),
            traffic: Traffic {
                rx_packets: stats.rx_frames,
                rx_bytes: stats.rx_bytes,
                tx_packets: stats.tx_frames,
                tx_bytes: stats.tx_bytes,
                ..Traffic::default()
            },
            drops: stats.drops(),
            rings: if mode.is_some() { vec![rx] } else { Vec::new() },
        }
    }
}

/// A port, as it is and as it did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortStats {
    /// Its number.
    pub port: PortId,
    /// Its interface's name.
    pub interface: String,
    /// Whether its sockets are on an interface; false while the interface is gone.
    pub attached: bool,
    /// Counters by worker.
    pub queues: Vec<QueueStats>,
}

/// How full a ring is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::io) struct Level {
    /// Descriptors in it.
    pub(in crate::io) used: u32,
    /// Descriptors that it can hold.
    pub(in crate::io) size: u32,
}
