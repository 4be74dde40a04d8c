use std::sync::atomic::{AtomicU64, Ordering};

use crate::route::PortId;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one worker on one interface.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct QueueStats { $($(#[$doc])* pub $name: u64,)* }

        /// The same, written by one worker and read by anyone.
        #[derive(Debug, Default)]
        pub(in crate::io) struct Counters { $(pub(in crate::io) $name: Counter,)* }

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
pub struct Level {
    /// Descriptors in it.
    pub used: u32,
    /// Descriptors that it can hold.
    pub size: u32,
}

/// A port's queue as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueRow {
    /// The interface's name.
    pub interface: String,
    /// The queue: of the interface (AF_XDP), or of the fanout group (AF_PACKET).
    pub queue: u32,
    /// The worker that serves it.
    pub worker: usize,
    /// `afpacket` or `afxdp`.
    pub datapath: &'static str,
    /// The modes, such as `native copy need-wakeup`.
    pub mode: String,
    /// Frames taken from the ring.
    pub rx_packets: u64,
    /// Frames sent by it.
    pub tx_packets: u64,
    /// Frames that never reached the worker: no room or no buffer, too long, invalid.
    pub rx_drops: u64,
    /// Buffers that the kernel may fill; AF_XDP only, as the following ones.
    pub fill: Option<Level>,
    /// Frames that wait for the worker.
    pub rx: Option<Level>,
    /// Frames that wait for the kernel to send them.
    pub tx: Option<Level>,
    /// Buffers of sent frames that wait for the worker.
    pub completion: Option<Level>,
}
