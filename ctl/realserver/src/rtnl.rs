//! The few questions to rtnetlink, and changes by it: interfaces, addresses, routes, and XDP programs that are set or removed
//! without a BPF link.

mod change;
mod read;

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkMessage, LinkXdp};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// Flags of `IFLA_XDP_FLAGS` (linux/if_link.h).
const UPDATE_IF_NOEXIST: u32 = 1;
const SKB_MODE: u32 = 2;
const DRV_MODE: u32 = 4;
const REPLACE: u32 = 16;

/// `NLM_F_DUMP_INTR` (linux/netlink.h).
const DUMP_INTERRUPTED: u16 = 0x10;
/// The protocol number is 0.
const NETLINK_ROUTE: Option<Protocol> = None;

/// How often a listing that changed under our eyes is asked for again.
const TRIES: usize = 5;
/// How long the kernel may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where in the kernel a program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpKind {
    /// In the driver.
    Native,
    /// In the stack, before everything else; any interface can do that.
    Generic,
    /// In the card.
    Offloaded,
}

impl XdpKind {
    fn flags(self) -> u32 {
        match self {
            XdpKind::Native => DRV_MODE,
            XdpKind::Generic => SKB_MODE,
            XdpKind::Offloaded => 8,
        }
    }
}

/// A program on an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Attached {
    pub(crate) kind: XdpKind,
    /// The program's id.
    pub(crate) id: u32,
}

/// An interface as rtnetlink describes it.
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) xdp: Vec<Attached>,
}

/// A socket for requests.
pub(crate) struct Rtnl {
    socket: OwnedFd,
}

impl Rtnl {
    pub(crate) fn open() -> Result<Rtnl, Errno> {
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, NETLINK_ROUTE)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(Rtnl { socket })
    }

    /// The interface called `name`; `ENODEV` where there is none.
    pub(crate) fn interface(&self, name: &str) -> Result<Interface, Errno> {
        let mut m = LinkMessage::default();
        m.attributes.push(LinkAttribute::IfName(name.into()));
        let mut found = None;
        self.ask(RouteNetlinkMessage::GetLink(m), NLM_F_ACK, &mut |reply| {
            if let RouteNetlinkMessage::NewLink(link) = reply {
                found = Some(Interface { index: link.header.index, xdp: programs(&link) });
            }
        })?;
        found.ok_or(Errno::NODEV)
    }

    /// The addresses of an interface.
    pub(crate) fn addresses(&self, index: u32) -> Result<Vec<IpAddr>, Errno> {
        for _ in 0..TRIES {
            let mut found = Vec::new();
            let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
            let whole = self.ask(request, NLM_F_DUMP, &mut |reply| {
                if let RouteNetlinkMessage::NewAddress(a) = reply
                    && a.header.index == index
                {
                    found.extend(own_address(&a));
                }
            })?;
            if whole {
                found.sort();
                found.dedup();
                return Ok(found);
            }
        }
        Err(Errno::AGAIN)
    }

    /// Sets a program where there is none (`old` is None), or in the place of `old`.
    pub(crate) fn set_xdp(
        &self,
        index: u32,
        kind: XdpKind,
        program: BorrowedFd<'_>,
        old: Option<BorrowedFd<'_>>,
    ) -> Result<(), Errno> {
        self.change_xdp(index, kind, program.as_raw_fd(), old)
    }

    /// Removes the program `old`.
    pub(crate) fn clear_xdp(&self, index: u32, kind: XdpKind, old: BorrowedFd<'_>) -> Result<(), Errno> {
        self.change_xdp(index, kind, -1, Some(old))
    }

    fn change_xdp(
        &self,
        index: u32,
        kind: XdpKind,
        fd: i32,
        old: Option<BorrowedFd<'_>>,
    ) -> Result<(), Errno> {
        let mut xdp = vec![LinkXdp::Fd(fd)];
        let mut flags = kind.flags();
        match old {
            Some(old) => {
                flags |= REPLACE;
                xdp.push(LinkXdp::ExpectedFd(old.as_raw_fd().cast_unsigned()));
            }
            None => flags |= UPDATE_IF_NOEXIST,
        }
        xdp.push(LinkXdp::Flags(flags));
        let mut m = LinkMessage::default();
        m.header.index = index;
        m.attributes.push(LinkAttribute::Xdp(xdp));
        self.ask(RouteNetlinkMessage::SetLink(m), NLM_F_ACK, &mut |_| {}).map(|_| ())
    }

    /// Sends a request and hands its replies to `each`, to the end. False: a listing that is not of one moment.
    fn ask(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
        each: &mut dyn FnMut(RouteNetlinkMessage),
    ) -> Result<bool, Errno> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = 1;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        send(&self.socket, &bytes, SendFlags::empty())?;

        let mut whole = true;
        let mut buf = vec![0; 65536];
        loop {
            let (len, _) = recv(&self.socket, &mut buf[..], RecvFlags::empty())?;
            let mut rest = buf.get(..len).unwrap_or_default();
            while !rest.is_empty() {
                let reply =
                    NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(|_| Errno::BADMSG)?;
                whole &= reply.header.flags & DUMP_INTERRUPTED == 0;
                let used = (reply.header.length as usize).next_multiple_of(4).max(16);
                rest = rest.get(used..).unwrap_or_default();
                match reply.payload {
                    NetlinkPayload::InnerMessage(m) => each(m),
                    NetlinkPayload::Done(_) => return Ok(whole),
                    NetlinkPayload::Error(e) => {
                        return match e.code {
                            None => Ok(whole),
                            Some(code) => Err(Errno::from_raw_os_error(code.get().saturating_neg())),
                        };
                    }
                    _ => {}
                }
            }
        }
    }
}

fn programs(link: &LinkMessage) -> Vec<Attached> {
    let of = |x: &LinkXdp| match *x {
        LinkXdp::DrvProgId(id) => Some(Attached { kind: XdpKind::Native, id }),
        LinkXdp::SkbProgId(id) => Some(Attached { kind: XdpKind::Generic, id }),
        LinkXdp::HwProgId(id) => Some(Attached { kind: XdpKind::Offloaded, id }),
        _ => None,
    };
    let mut found = Vec::new();
    for attribute in &link.attributes {
        if let LinkAttribute::Xdp(all) = attribute {
            found.extend(all.iter().filter_map(of));
        }
    }
    found
}

/// The interface's own end: `IFA_LOCAL` where there is one, since `IFA_ADDRESS` is the far end then.
fn own_address(a: &AddressMessage) -> Option<IpAddr> {
    let local = a.attributes.iter().find_map(|x| match x {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    local.or_else(|| {
        a.attributes.iter().find_map(|x| match x {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    })
}
