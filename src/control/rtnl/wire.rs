//! The requests that the follower sends, and the splitting of what it receives.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::rule::RuleMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::route::Solicit;

/// The tables in the order in which they are read: what refers to a link comes after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Table {
    Links,
    Addresses,
    Routes4,
    Routes6,
    Neighbours,
    Rules,
}

pub(super) const TABLES: [Table; 6] =
    [Table::Links, Table::Addresses, Table::Routes4, Table::Routes6, Table::Neighbours, Table::Rules];

/// The request for a table (to be sent with `NLM_F_DUMP`).
pub(super) fn dump(table: Table) -> RouteNetlinkMessage {
    let routes = |family| {
        let mut m = RouteMessage::default();
        m.header.address_family = family;
        RouteNetlinkMessage::GetRoute(m)
    };
    match table {
        Table::Links => {
            let mut m = LinkMessage::default();
            m.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
            RouteNetlinkMessage::GetLink(m)
        }
        Table::Addresses => RouteNetlinkMessage::GetAddress(AddressMessage::default()),
        Table::Routes4 => routes(AddressFamily::Inet),
        Table::Routes6 => routes(AddressFamily::Inet6),
        Table::Neighbours => RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()),
        Table::Rules => RouteNetlinkMessage::GetRule(RuleMessage::default()),
    }
}

/// The request to resolve or confirm a neighbour: an entry without a state of its own, in use (to be sent with
/// `NLM_F_CREATE`). Like `ip neigh replace ADDR dev DEV use`.
pub(super) fn solicit(s: &Solicit) -> RouteNetlinkMessage {
    let mut m = NeighbourMessage::default();
    m.header.family = match s.addr {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    m.header.ifindex = s.ifindex;
    m.header.state = NeighbourState::None;
    m.header.flags = NeighbourFlags::Use;
    m.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::from(s.addr)));
    RouteNetlinkMessage::NewNeighbour(m)
}

/// A request on the wire, padded so that another may follow it.
pub(super) fn encode(sequence: u32, flags: u16, message: RouteNetlinkMessage) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    header.sequence_number = sequence;
    let mut m = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
    m.finalize();
    let mut bytes = vec![0; m.buffer_len().next_multiple_of(4)];
    m.serialize(&mut bytes);
    bytes
}

/// A piece of a datagram.
pub(super) struct Piece<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) port: u32,
    /// The whole message.
    pub(super) bytes: &'a [u8],
}

/// Splits a datagram into its messages; a last one that is cut short is left out and named by `Err`.
pub(super) fn split(mut datagram: &[u8]) -> impl Iterator<Item = Result<Piece<'_>, usize>> {
    std::iter::from_fn(move || {
        if datagram.is_empty() {
            return None;
        }
        let Ok(header) = NetlinkBuffer::new_checked(datagram) else {
            let left = datagram.len();
            datagram = &[];
            return Some(Err(left));
        };
        let len = header.length() as usize;
        let piece = Piece {
            kind: header.message_type(),
            flags: header.flags(),
            sequence: header.sequence_number(),
            port: header.port_number(),
            bytes: datagram.get(..len).unwrap_or(datagram),
        };
        // The header's check has made sure that 16 <= len <= what there is.
        datagram = datagram.get(len.next_multiple_of(4).max(16)..).unwrap_or(&[]);
        Some(Ok(piece))
    })
}
