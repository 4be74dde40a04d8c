//! What holds the XDP program that is in the way on an interface: that decides how it goes.

use aya::programs::links::LinkType;
use aya::programs::loaded_links;

use crate::io::attach::os_error;
use crate::io::netlink::{ask, attribute};

/// BPF links that are looked at, so that the look ends.
const LINKS: usize = 1 << 16;

/// What holds a program at an interface's XDP hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    /// A BPF link: no other program or command can take it away.
    Link,
    /// The interface alone.
    Interface,
    /// The kernel does not tell us (that takes `CAP_SYS_ADMIN`), or it has gone meanwhile.
    Unknown,
}

/// What is in the way on an interface of the calling thread's network namespace, and what to do.
pub(super) fn remedy(index: u32) -> &'static str {
    match holder(index) {
        Holder::Link => {
            "another XDP program is attached to it by a BPF link, so 'ip link set … xdp off' can't remove it: it goes when its \
             owner ends, or when its pin in a BPF file system is removed ('bpftool link' tells of both); or use --datapath afpacket"
        }
        Holder::Interface => {
            "another XDP program is attached to it; remove that one (stop its owner, then 'ip link set … xdp off'), or use \
             --datapath afpacket"
        }
        Holder::Unknown => {
            "another XDP program is attached to it; remove that one ('ip link set … xdp off'; if a BPF link holds it, it goes when \
             its owner ends or its pin is removed, see 'bpftool link'), or use --datapath afpacket"
        }
    }
}

fn holder(index: u32) -> Holder {
    let Some(program) = program(index) else { return Holder::Unknown };
    let mut all_seen = true;
    for link in loaded_links().take(LINKS) {
        match link {
            Ok(link) if link.program_id() != program => {}
            Ok(link) if matches!(link.link_type(), Ok(LinkType::Xdp)) => return Holder::Link,
            Ok(_) => {}
            // gone meanwhile
            Err(e) if os_error(&e) == Some(libc::ENOENT) => {}
            Err(_) => all_seen = false,
        }
    }
    if all_seen { Holder::Interface } else { Holder::Unknown }
}

/// The id of the program at an interface's XDP hook, by rtnetlink.
pub(in crate::io) fn program(index: u32) -> Option<u32> {
    /// Length of a netlink message's header and of `struct ifinfomsg`.
    const HEADERS: usize = 32;
    const IFLA_XDP: u16 = 43;
    /// `IFLA_XDP_PROG_ID`, and those of the driver, the stack and the card where there are several.
    const PROGRAMS: [u16; 4] = [4, 5, 6, 7];
    let mut message = Vec::with_capacity(HEADERS);
    message.extend((HEADERS as u32).to_ne_bytes());
    message.extend(libc::RTM_GETLINK.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend([0; 12]);
    message.extend(index.to_ne_bytes());
    message.extend([0; 8]);
    let reply = ask(libc::NETLINK_ROUTE, &message).ok()?;
    let xdp = attribute(reply.get(HEADERS..)?, IFLA_XDP)?;
    PROGRAMS.iter().find_map(|&kind| Some(u32::from_ne_bytes(attribute(xdp, kind)?.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};

    use aya::programs::{XdpMode, loaded_programs};

    use super::*;
    use crate::io::testlab::CONFIG;
    use crate::io::testnet::{Net, cannot};
    use crate::io::{BpfTables, TableShape, netdev};

    /// Sets a program at an interface's hook as `ip link set … xdp` does: without a link.
    fn set(index: u32, program: i32) {
        let mut message = Vec::new();
        message.extend(44u32.to_ne_bytes());
        message.extend(libc::RTM_SETLINK.to_ne_bytes());
        message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16).to_ne_bytes());
        message.extend([0; 12]);
        message.extend(index.to_ne_bytes());
        message.extend([0; 8]);
        // IFLA_XDP with IFLA_XDP_FD
        message.extend(12u16.to_ne_bytes());
        message.extend((43u16 | libc::NLA_F_NESTED as u16).to_ne_bytes());
        message.extend(8u16.to_ne_bytes());
        message.extend(1u16.to_ne_bytes());
        message.extend(program.to_ne_bytes());
        ask(libc::NETLINK_ROUTE, &message).unwrap();
    }

    #[test]
    fn links_are_told_from_programs_that_ip_can_remove() {
        if cannot() {
            return;
        }
        let net = Net::new();
        net.sh("ip link add va type veth peer name vb");
        let tables = BpfTables::create(TableShape::of(&CONFIG), 7).unwrap();
        tables.load_xdp().unwrap();
        net.run(|| {
            let index = netdev::index("va").unwrap();
            assert_eq!((program(index), holder(index)), (None, Holder::Unknown));
            let link = tables.attach_xdp(index, XdpMode::Driver).unwrap();
            let id = program(index).unwrap();
            assert_eq!(holder(index), Holder::Link);
            assert!(remedy(index).contains("can't remove it") && remedy(index).contains("bpftool link"));
            let info = loaded_programs().find_map(|p| p.ok().filter(|p| p.id() == id)).unwrap();
            let fd = info.fd().unwrap();
            drop(link);
            crate::io::testnet::until("the link to let go", || program(index).is_none());
            set(index, fd.as_fd().as_raw_fd());
            assert_eq!((program(index), holder(index)), (Some(id), Holder::Interface));
            assert!(remedy(index).contains("'ip link set … xdp off'"));
        });
        net.sh("ip link set dev va xdp off");
        assert_eq!(net.run(|| program(netdev::index("va").unwrap())), None);
    }
}
