//! Counters of the data path: one for each reason to drop a frame, and one for each thing done with a frame.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use modes::packet::ParseError;

use crate::route::NextHopId;

macro_rules! counted {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident => $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $variant,)* }
        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// The counter's name, as `lvsctl status` shows it and `docs/counters.md` explains it.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }
    };
}

counted! {
    /// Why a frame was dropped. Each has a counter and a sentence in `docs/counters.md`.
    Reason {
        /// Shorter than an Ethernet header.
        FrameTooShort => "drop_frame_too_short",
        /// IPv4 header cut short.
        Ipv4Truncated => "drop_ipv4_truncated",
        /// EtherType IPv4, version not 4.
        Ipv4BadVersion => "drop_ipv4_bad_version",
        /// IHL below 5 or beyond the packet.
        Ipv4BadHeaderLength => "drop_ipv4_bad_header_length",
        /// Total length below the header's or beyond the frame.
        Ipv4BadTotalLength => "drop_ipv4_bad_total_length",
        /// IPv4 header checksum wrong.
        Ipv4BadChecksum => "drop_ipv4_bad_checksum",
        /// IPv6 header cut short.
        Ipv6Truncated => "drop_ipv6_truncated",
        /// EtherType IPv6, version not 6.
        Ipv6BadVersion => "drop_ipv6_bad_version",
        /// Payload length beyond the frame, or a jumbogram.
        Ipv6BadPayloadLength => "drop_ipv6_bad_payload_length",
        /// Extension header cut short or of impossible length.
        Ipv6BadExtension => "drop_ipv6_bad_extension",
        /// More extension headers than are looked through.
        Ipv6TooManyExtensions => "drop_ipv6_too_many_extensions",
        /// TCP header cut short.
        TcpTruncated => "drop_tcp_truncated",
        /// TCP data offset below 5 or beyond the packet.
        TcpBadOffset => "drop_tcp_bad_offset",
        /// UDP header cut short.
        UdpTruncated => "drop_udp_truncated",
        /// UDP length below 8 or beyond the packet.
        UdpBadLength => "drop_udp_bad_length",
        /// SCTP header cut short.
        SctpTruncated => "drop_sctp_truncated",
        /// ICMP header cut short.
        IcmpTruncated => "drop_icmp_truncated",
        /// The service has no server that may take the connection.
        NoDestination => "drop_no_destination",
        /// The connection's server was removed, and `expire_nodest_conn` is 0.
        DestinationGone => "drop_destination_gone",
        /// The connection table is full.
        TableFull => "drop_table_full",
        /// The server's and client's ends are taken by another connection already.
        ReplyTupleTaken => "drop_reply_tuple_taken",
        /// A server was balanced to itself by NAT.
        Hairpin => "drop_hairpin",
        /// A NAT server that is an address of the director, but not the virtual one.
        LocalNat => "drop_local_nat",
        /// A tunnel server with an encapsulation (GUE) that is not built yet.
        MethodMissing => "drop_method_missing",
        /// A fragment to a virtual service, which is not balanced yet.
        Fragment => "drop_fragment",
        /// TTL or hop limit used up; answered by an ICMP error where allowed.
        TtlExceeded => "drop_ttl_exceeded",
        /// Too large for the next hop, and must not be fragmented; answered by an ICMP error where allowed.
        TooBig => "drop_too_big",
        /// The MTU toward a tunnel server leaves too little for packets inside.
        TunnelMtu => "drop_tunnel_mtu",
        /// The director has no address of the tunnel server's family on the way there.
        NoTunnelSource => "drop_no_tunnel_source",
        /// A super-packet for a tunnel that cannot be cut into segments.
        SuperPacket => "drop_super_packet",
        /// A source-routed packet, which would leave by another way than its connection's.
        SourceRoute => "drop_source_route",
        /// A broken IPv4 option; answered by an ICMP parameter problem where allowed.
        BadOption => "drop_bad_option",
        /// No route to the server or client.
        NoRoute => "drop_no_route",
        /// The route leads out of an interface that is not a port of the data path.
        NotOurPort => "drop_not_our_port",
        /// The next hop's link address is not known, and the queue for it is full.
        NextHopQueueFull => "drop_next_hop_queue_full",
        /// The next hop's link address stayed unknown for too long.
        NextHopUnresolved => "drop_next_hop_unresolved",
        /// More next hops in use than there is room for.
        TooManyNextHops => "drop_too_many_next_hops",
    }
}

counted! {
    /// What was done with frames.
    Count {
        /// Frames that reached the core.
        Received => "received",
        /// Sent on by NAT, client to server.
        NatIn => "forward_nat_in",
        /// Sent on by NAT, server to client.
        NatOut => "forward_nat_out",
        /// Sent on by direct routing.
        Dr => "forward_dr",
        /// Sent on by a tunnel.
        Tunnel => "forward_tunnel",
        /// Given to the director's own stack for a local server.
        Local => "forward_local",
        /// Not ours: given back to the kernel.
        Passed => "passed",
        /// Of these, frames with the tag of a VLAN.
        Tagged => "passed_tagged",
        /// Connections made.
        ConnNew => "conn_new",
        /// Persistence templates made.
        TemplateNew => "template_new",
        /// Connections that ended by timeout.
        ConnExpired => "conn_expired",
        /// Connections ended because a SYN used their ports again.
        ConnReused => "conn_reused",
        /// Connections ended because their server was removed.
        ConnNoDest => "conn_nodest",
        /// Half-open connections, and templates of such, ended because others needed their place.
        HalfOpenEvicted => "half_open_evicted",
        /// SYNs sent on without an entry.
        SynStateless => "syn_stateless",
        /// Of the connections made, those that a later segment than a SYN made.
        ConnAfterSyn => "conn_after_stateless_syn",
        /// ICMP errors of others about known connections.
        IcmpRelated => "icmp_related",
        /// ICMP errors made.
        IcmpSent => "icmp_sent",
        /// ICMP errors not made because of the rate limit.
        IcmpLimited => "icmp_rate_limited",
        /// Frames cut into fragments.
        Fragmented => "fragmented",
        /// Super-packets cut into segments for a tunnel.
        Segmented => "segmented",
        /// Frames that waited for their next hop.
        Queued => "next_hop_queued",
    }
}

impl From<ParseError> for Reason {
    fn from(e: ParseError) -> Reason {
        match e {
            // The first three are not malformed, and never dropped: they go on to the kernel.
            ParseError::NotIp
            | ParseError::Ipv6SourceRouted
            | ParseError::BigTcp
            | ParseError::FrameTooShort => Reason::FrameTooShort,
            ParseError::Ipv4Truncated => Reason::Ipv4Truncated,
            ParseError::Ipv4BadVersion => Reason::Ipv4BadVersion,
            ParseError::Ipv4BadHeaderLength => Reason::Ipv4BadHeaderLength,
            ParseError::Ipv4BadTotalLength => Reason::Ipv4BadTotalLength,
            ParseError::Ipv4BadChecksum => Reason::Ipv4BadChecksum,
            ParseError::Ipv6Truncated => Reason::Ipv6Truncated,
            ParseError::Ipv6BadVersion => Reason::Ipv6BadVersion,
            ParseError::Ipv6BadPayloadLength => Reason::Ipv6BadPayloadLength,
            ParseError::Ipv6BadExtension => Reason::Ipv6BadExtension,
            ParseError::Ipv6TooManyExtensions => Reason::Ipv6TooManyExtensions,
            ParseError::TcpTruncated => Reason::TcpTruncated,
            ParseError::TcpBadOffset => Reason::TcpBadOffset,
            ParseError::UdpTruncated => Reason::UdpTruncated,
            ParseError::UdpBadLength => Reason::UdpBadLength,
            ParseError::SctpTruncated => Reason::SctpTruncated,
            ParseError::IcmpTruncated => Reason::IcmpTruncated,
        }
    }
}

/// One worker's counters. Only that worker writes; anybody reads.
#[derive(Debug)]
#[repr(align(64))]
pub struct Counters {
    drops: [AtomicU64; Reason::ALL.len()],
    counts: [AtomicU64; Count::ALL.len()],
    /// The interface that the last [`Reason::NotOurPort`] was about, 0: none yet.
    foreign: AtomicU32,
    /// The next hop that the last drop for want of a link address was about, and a bit that says that there was one.
    silent: AtomicU64,
}

/// The bit in [`Counters::silent`].
const NOTED: u64 = 1 << 32;

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            drops: [const { AtomicU64::new(0) }; Reason::ALL.len()],
            counts: [const { AtomicU64::new(0) }; Count::ALL.len()],
            foreign: AtomicU32::new(0),
            silent: AtomicU64::new(0),
        }
    }
}

fn bump(c: &AtomicU64, n: u64) {
    c.store(c.load(Relaxed).wrapping_add(n), Relaxed);
}

impl Counters {
    /// Counts a drop.
    pub fn drop(&self, reason: Reason) {
        bump(&self.drops[reason as usize], 1);
    }
    /// Counts an event.
    pub fn count(&self, what: Count) {
        bump(&self.counts[what as usize], 1);
    }
    /// Counts `n` events.
    pub fn add(&self, what: Count, n: u64) {
        bump(&self.counts[what as usize], n);
    }
    /// Notes which interface is no port.
    pub(super) fn note_foreign(&self, ifindex: u32) {
        self.foreign.store(ifindex, Relaxed);
    }
    /// Notes which next hop does not answer.
    pub(super) fn note_silent(&self, hop: NextHopId) {
        self.silent.store(NOTED | u64::from(hop.0), Relaxed);
    }
    /// The interface that was noted last.
    pub(super) fn foreign_interface(&self) -> Option<u32> {
        Some(self.foreign.load(Relaxed)).filter(|i| *i != 0)
    }
    /// The next hop that was noted last.
    pub(super) fn silent_hop(&self) -> Option<NextHopId> {
        let word = self.silent.load(Relaxed);
        (word & NOTED != 0).then_some(NextHopId(word as u32))
    }
    /// How often a reason was met.
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.drops[reason as usize].load(Relaxed)
    }
    /// How often an event was counted.
    pub fn counted(&self, what: Count) -> u64 {
        self.counts[what as usize].load(Relaxed)
    }
}
