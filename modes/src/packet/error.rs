/// Why a frame is not a packet that can be balanced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseError {
    /// Not IPv4 or IPv6 (ARP, LLDP, …), or more VLAN tags than two: not ours.
    NotIp,
    /// Ends within the Ethernet header or a VLAN tag.
    FrameTooShort,
    /// Ends within the IPv4 header or its options.
    Ipv4Truncated,
    /// EtherType IPv4, but another version in the header.
    Ipv4BadVersion,
    /// IHL below 5.
    Ipv4BadHeaderLength,
    /// Total length below the header's, or beyond the frame's end.
    Ipv4BadTotalLength,
    /// The header checksum is wrong.
    Ipv4BadChecksum,
    /// Ends within the IPv6 header.
    Ipv6Truncated,
    /// EtherType IPv6, but another version in the header.
    Ipv6BadVersion,
    /// Payload length beyond the frame's end.
    Ipv6BadPayloadLength,
    /// An extension header goes beyond the packet, or a hop-by-hop header is not the first.
    Ipv6BadExtension,
    /// More extension headers than [`crate::packet::MAX_EXTENSIONS`].
    Ipv6TooManyExtensions,
    /// A routing header with segments left: the destination is a waypoint, not the end (RFC 8200 section 4.4). Well-formed, but
    /// never balanced.
    Ipv6SourceRouted,
    /// A super-packet of more than 65,535 bytes (BIG TCP), or an IPv6 jumbogram (RFC 2675): its length field is 0. Well-formed, but
    /// never balanced; interfaces must be kept from making them (`gso_max_size`, `gro_max_size`).
    BigTcp,
    /// Ends within the fixed TCP header, be it in a first fragment.
    TcpTruncated,
    /// TCP data offset below 5, or beyond the packet.
    TcpBadOffset,
    /// Ends within the UDP header.
    UdpTruncated,
    /// UDP length below 8, or beyond the packet.
    UdpBadLength,
    /// Ends within the SCTP common header.
    SctpTruncated,
    /// Less than 8 bytes of ICMP or ICMPv6.
    IcmpTruncated,
}

impl ParseError {
    /// Whether the bytes break the rules of their format. What is not malformed is just not for us to balance, and goes on to
    /// the kernel.
    pub fn is_malformed(self) -> bool {
        !matches!(self, ParseError::NotIp | ParseError::Ipv6SourceRouted | ParseError::BigTcp)
    }
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ParseError::NotIp => "not IPv4 or IPv6",
            ParseError::FrameTooShort => "frame ends within its Ethernet header",
            ParseError::Ipv4Truncated => "frame ends within its IPv4 header",
            ParseError::Ipv4BadVersion => "IPv4 EtherType with another version",
            ParseError::Ipv4BadHeaderLength => "IPv4 header length below 20",
            ParseError::Ipv4BadTotalLength => "IPv4 total length below the header's or beyond the frame",
            ParseError::Ipv4BadChecksum => "wrong IPv4 header checksum",
            ParseError::Ipv6Truncated => "frame ends within its IPv6 header",
            ParseError::Ipv6BadVersion => "IPv6 EtherType with another version",
            ParseError::Ipv6BadPayloadLength => "IPv6 payload length beyond the frame",
            ParseError::Ipv6BadExtension => "bad IPv6 extension header",
            ParseError::Ipv6TooManyExtensions => "too many IPv6 extension headers",
            ParseError::Ipv6SourceRouted => "IPv6 routing header with segments left",
            ParseError::BigTcp => "packet of more than 65535 bytes",
            ParseError::TcpTruncated => "packet ends within its TCP header",
            ParseError::TcpBadOffset => "TCP data offset below 5 or beyond the packet",
            ParseError::UdpTruncated => "packet ends within its UDP header",
            ParseError::UdpBadLength => "UDP length below 8 or beyond the packet",
            ParseError::SctpTruncated => "packet ends within its SCTP header",
            ParseError::IcmpTruncated => "packet ends within its ICMP header",
        })
    }
}

impl std::error::Error for ParseError {}
