//! What is missing on a machine for it to be a real server: a list of steps, empty where all is there.

use std::net::IpAddr;

use crate::check;
use crate::error::Error;
use crate::machine::{Link, Machine};
use crate::mss;
use crate::step::{Step, TunnelKind, recordable};
use crate::wish::{Mode, Wish, check_vips, ingress};

/// Steps, in the order in which they are taken: the virtual addresses come last, when nobody answers ARP for them any more
/// and what arrives can be taken out of its tunnel.
pub(crate) fn plan(m: &Machine, wish: &Wish) -> Result<Vec<Step>, Error> {
    check_vips(&wish.vips)?;
    if wish.mode == Mode::Nat {
        return Err(Error::NothingForNat);
    }
    for vip in &wish.vips {
        if let Some(found) = check::vip::misplaced(m, *vip) {
            return Err(Error::InTheWay { what: found.what, mend: found.mend });
        }
    }
    let mut steps = Vec::new();
    let v4 = wish.vips.iter().any(|ip| ip.is_ipv4());
    let named = wish.dev.as_deref().map(|dev| ingress(m, Some(dev), &[])).transpose()?;
    if v4 {
        steps.extend(check::arp::missing(m, named).into_iter().flat_map(|(_, steps)| steps));
    }
    if wish.mode.tunnels() {
        let at = match named {
            Some(link) => link,
            None => ingress(m, None, &[])?,
        };
        tunnels(m, wish, at, v4, &mut steps)?;
    } else if let Some(link) = named.filter(|l| v4 && check::arp::one_way(m, l, &[])) {
        steps.push(check::arp::loosen(link));
    }
    let lo = m.links.iter().find(|l| l.loopback).ok_or_else(|| Error::NoSuchInterface("lo".into()))?;
    let mut seen: Vec<IpAddr> = Vec::new();
    for vip in &wish.vips {
        if m.holders(*vip).next().is_none() && !seen.contains(vip) {
            steps.push(Step::Address { dev: lo.name.clone(), ip: *vip });
        }
        seen.push(*vip);
    }
    Ok(steps)
}

fn tunnels(m: &Machine, wish: &Wish, at: &Link, v4: bool, steps: &mut Vec<Step>) -> Result<(), Error> {
    if m.own_addresses(at.index, &wish.vips).next().is_none() {
        return Err(Error::NoAddress(at.name.clone()));
    }
    if wish.kernel_tunnel {
        kernel_tunnels(m, wish, at, steps);
    } else {
        if !recordable(&wish.pin_dir) {
            return Err(Error::BadPath(wish.pin_dir.clone()));
        }
        let knows_all =
            at.xdp.decap().is_some_and(|known| m.own_addresses(at.index, &[]).all(|ip| known.contains(&ip)));
        if !knows_all {
            steps.push(Step::Decap {
                dev: at.name.clone(),
                pin_dir: wish.pin_dir.clone(),
                fresh: at.xdp.decap().is_none(),
            });
        }
        if v4 && check::arp::one_way(m, at, &[]) {
            steps.push(check::arp::loosen(at));
        }
    }
    if wish.advmss {
        let overhead = mss::overhead(m, at, &wish.vips, wish.mode, &[]);
        let excess = mss::excess(m, at, &wish.vips, overhead).into_iter().filter(|e| !e.route.fixed);
        steps.extend(excess.map(|e| Step::Advmss { route: e.route, dev: e.dev, new: e.fits }));
    }
    Ok(())
}

/// A device for each kind of packet that may come, and no strict filter at it: its packets' senders are never behind it.
fn kernel_tunnels(m: &Machine, wish: &Wish, at: &Link, steps: &mut Vec<Step>) {
    for v6 in [false, true] {
        let Some(local) = m.own_addresses(at.index, &wish.vips).find(|ip| ip.is_ipv6() == v6) else {
            continue;
        };
        for kind in kinds(wish.mode, v6, &wish.vips) {
            let device = kind.device();
            let there = m.link(&device);
            if there.is_none() {
                steps.push(Step::Tunnel { dev: device.clone(), kind, local });
            }
            let conf = there.map_or(m.default, |l| l.conf);
            if conf.effective(m.all).rp_filter == 1 {
                steps.push(Step::Sysctl {
                    key: format!("net/ipv4/conf/{device}/rp_filter"),
                    old: conf.rp_filter.to_string(),
                    new: check::arp::LOOSE.to_string(),
                });
            }
        }
    }
}

/// The devices that take packets for `vips` out of an outer header of one family.
pub(crate) fn kinds(mode: Mode, outer_v6: bool, vips: &[IpAddr]) -> Vec<TunnelKind> {
    match (mode, outer_v6) {
        (Mode::Ipip, false) => {
            let v4 = vips.iter().any(|ip| ip.is_ipv4()).then_some(TunnelKind::Ipip);
            let v6 = vips.iter().any(|ip| ip.is_ipv6()).then_some(TunnelKind::Sit);
            v4.into_iter().chain(v6).collect()
        }
        (Mode::Ipip, true) => vec![TunnelKind::Ip6Tnl],
        (Mode::Gre, false) => vec![TunnelKind::Gre],
        (Mode::Gre, true) => vec![TunnelKind::Ip6Gre],
        (Mode::Dr | Mode::Nat, _) => Vec::new(),
    }
}
