//! What takes tunnels' headers off, and room for them.

use std::net::IpAddr;

use super::{Finding, arp};
use crate::machine::{AtXdp, Link, Machine};
use crate::mss;
use crate::plan::kinds;
use crate::step::change_route;
use crate::wish::{Mode, Question};

pub(super) fn findings(m: &Machine, q: &Question, at: &Link, found: &mut Vec<Finding>) {
    match &at.xdp {
        AtXdp::Decap(known) => {
            let unknown: Vec<String> = m
                .own_addresses(at.index, &q.vips)
                .filter(|ip| !known.contains(ip))
                .map(|ip| ip.to_string())
                .collect();
            if !unknown.is_empty() {
                found.push(Finding {
                    id: "decap-stale",
                    what: format!(
                        "the decapsulator on {} was loaded before {} was there: tunnels to it stay closed",
                        at.name,
                        unknown.join(", ")
                    ),
                    mend: format!("lvsctl realserver decap --dev {}", at.name),
                });
            }
        }
        AtXdp::Nothing | AtXdp::Other { .. } => kernel(m, q, at, found),
    }
    room(m, q, at, found);
}

/// Without a decapsulator it must be the kernel's devices: for each outer family that may come, all kinds that are needed.
fn kernel(m: &Machine, q: &Question, at: &Link, found: &mut Vec<Finding>) {
    let comes = |v6: bool| match q.directors.as_slice() {
        [] => m.own_addresses(at.index, &q.vips).any(|ip| ip.is_ipv6() == v6),
        directors => directors.iter().any(|d| d.is_ipv6() == v6),
    };
    let families: Vec<Vec<Option<&Link>>> = [false, true]
        .into_iter()
        .filter(|v6| comes(*v6))
        .map(|v6| kinds(q.mode, v6, &q.vips).into_iter().map(|kind| device(m, kind.name())).collect())
        .collect();
    let whole = |there: &Vec<Option<&Link>>| there.iter().all(Option::is_some);
    // Each family of a known director must do; where it is not known, one is enough.
    let complete = match q.directors.is_empty() {
        true => families.iter().any(whole),
        false => !families.is_empty() && families.iter().all(whole),
    };
    if !complete {
        found.push(nothing(m, at));
        return;
    }
    let mut devices: Vec<&Link> = families.into_iter().filter(whole).flatten().flatten().collect();
    devices.dedup();
    for device in devices {
        if !device.up {
            found.push(Finding {
                id: "tunnel-down",
                what: format!(
                    "the tunnel device {} is down: what arrives in tunnels is dropped",
                    device.name
                ),
                mend: format!("ip link set {} up", device.name),
            });
        }
        if q.vips.iter().any(IpAddr::is_ipv4) && device.conf.effective(m.all).rp_filter == 1 {
            found.push(arp::strict(&device.name, "no client is behind a tunnel"));
        }
    }
}

/// The device of a kind; one that is up, if any is.
fn device<'m>(m: &'m Machine, kind: &str) -> Option<&'m Link> {
    m.links.iter().filter(|l| l.kind == kind).max_by_key(|l| l.up)
}

/// Nothing takes tunnels' headers off where they arrive.
fn nothing(m: &Machine, at: &Link) -> Finding {
    let load = format!("lvsctl realserver decap --dev {}", at.name);
    if let AtXdp::Other { program, remedy } = &at.xdp {
        return Finding {
            id: "xdp-other",
            what: format!(
                "another XDP program ({program}) is on {}, where the decapsulator should be",
                at.name
            ),
            mend: match (remedy.command(&at.name), remedy.by_link) {
                (Some(command), Some(_)) => format!("{command} && {load}"),
                _ => format!("{}; then `{load}'", remedy.sentence(&at.name)),
            },
        };
    }
    if let Some(other) = m.links.iter().find(|l| l.xdp.decap().is_some()) {
        return Finding {
            id: "decap-elsewhere",
            what: format!("the decapsulator is on {}, but tunnels arrive at {}", other.name, at.name),
            mend: format!("lvsctl realserver decap --off --dev {} && {load}", other.name),
        };
    }
    Finding {
        id: "decap-missing",
        what: format!("nothing takes tunnels' headers off at {}: no decapsulator, no tunnel device", at.name),
        mend: load,
    }
}

fn room(m: &Machine, q: &Question, at: &Link, found: &mut Vec<Finding>) {
    let overhead = mss::overhead(m, at, &q.vips, q.mode, &q.directors);
    let excess = mss::excess(m, at, &q.vips, overhead);
    if excess.is_empty() {
        return;
    }
    let larger = format!("ip link set {} mtu {}", at.name, 1500 + overhead.next_multiple_of(100));
    let commands: Vec<String> =
        excess.iter().filter(|e| !e.route.fixed).map(|e| change_route(&e.route, &e.dev, e.fits)).collect();
    let header = if q.mode == Mode::Gre { "GRE" } else { "IPIP" };
    found.push(Finding {
        id: "mtu",
        what: format!(
            "{} carries {} bytes, less than a client's packet of 1500 and {overhead} of {header} around it, and this server \
             announces an MSS that ignores it: uploads stall where ICMP \"fragmentation needed\" is lost (a larger MTU on \
             all links from the director would do, too: {larger})",
            at.name, at.mtu
        ),
        // Routes that routers advertise cannot be changed so.
        mend: if commands.is_empty() { larger } else { commands.join(" && ") },
    });
}
