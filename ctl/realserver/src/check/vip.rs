//! Where the virtual address is.

use std::net::IpAddr;

use super::Finding;
use crate::machine::{Address, Link, Machine, host_prefix};
use crate::step::add_address;

/// The address is nowhere.
pub(super) fn missing(m: &Machine, vip: IpAddr) -> Option<Finding> {
    if m.holders(vip).next().is_some() {
        return None;
    }
    let mend = add_address(vip, "lo");
    let forwards = if vip.is_ipv6() { m.forwards_v6 } else { m.forwards_v4 };
    Some(match forwards {
        false => Finding {
            id: "vip-missing",
            what: format!("{vip} is on no interface: this server drops what the director sends to it"),
            mend,
        },
        true => Finding {
            id: "vip-loop",
            what: format!(
                "{vip} is on no interface and this server forwards: it sends the director's packets back to the \
                 director, round and round"
            ),
            mend,
        },
    })
}

/// The address is somewhere, but not as it must be.
pub(crate) fn misplaced(m: &Machine, vip: IpAddr) -> Option<Finding> {
    m.holders(vip).find_map(|(link, address)| wrong(m, vip, link, address))
}

fn wrong(m: &Machine, vip: IpAddr, link: &Link, address: &Address) -> Option<Finding> {
    let (dev, prefix) = (&link.name, address.prefix);
    let away = format!("ip address del {vip}/{prefix} dev {dev}");
    let elsewhere = m.holders(vip).any(|(other, _)| other.index != link.index && !other.answers_arp());
    let moved = if elsewhere { away.clone() } else { format!("{away} && {}", add_address(vip, "lo")) };
    if link.answers_arp() {
        let (id, what) = if address.dad_failed || address.tentative {
            let state =
                if address.dad_failed { "failed duplicate address detection" } else { "is tentative" };
            ("vip-dad", format!("{vip} on {dev} {state}: the director has it too; a server has it on lo"))
        } else {
            let asks = if vip.is_ipv6() { "neighbour solicitations" } else { "ARP requests" };
            (
                "vip-on-interface",
                format!(
                    "{vip} is on {dev}, where this server answers {asks} for it and draws clients past the director"
                ),
            )
        };
        return Some(Finding { id, what, mend: moved });
    }
    if prefix != host_prefix(vip) {
        let what = match link.loopback {
            true => format!(
                "{vip}/{prefix} on {dev} makes its whole network local: this server reaches nobody in it"
            ),
            false => format!("{vip}/{prefix} on {dev} sends packets for its whole network there"),
        };
        let mend = format!("{away} && {}", add_address(vip, dev));
        return Some(Finding { id: "vip-wide", what, mend });
    }
    if vip.is_ipv6() && !address.deprecated {
        return Some(Finding {
            id: "vip-source",
            what: format!(
                "{vip} on {dev} has a preferred lifetime: this server may take it as the source of connections of \
                 its own, whose answers go to the director"
            ),
            mend: format!("ip -6 address change {vip}/{prefix} dev {dev} preferred_lft 0"),
        });
    }
    None
}

/// The server's own addresses must be its own.
pub(super) fn own_addresses(m: &Machine, at: &Link, vips: &[IpAddr], found: &mut Vec<Finding>) {
    let failed = m.addresses.iter().filter(|a| a.index == at.index && a.dad_failed && !vips.contains(&a.ip));
    found.extend(failed.map(|a| Finding {
        id: "address-dad",
        what: format!(
            "{} on {} failed duplicate address detection: another machine has it, and this one does not use it",
            a.ip, at.name
        ),
        mend: format!("ip address del {}/{} dev {}, and give one of the machines another", a.ip, a.prefix, at.name),
    }));
}
