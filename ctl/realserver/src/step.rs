//! One change to a machine: made, taken back, written down, and shown as the command that would do the same.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::decap;
use crate::error::Error;
use crate::machine::{Route, host_prefix};
use crate::rtnl::Rtnl;
use crate::sysctl;

/// Tunnel devices of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TunnelKind {
    /// IPv4 in IPv4.
    Ipip,
    /// IPv6 in IPv4.
    Sit,
    /// Either in IPv6.
    Ip6Tnl,
    /// Either by GRE over IPv4.
    Gre,
    /// Either by GRE over IPv6.
    Ip6Gre,
}

impl TunnelKind {
    pub(crate) const ALL: [TunnelKind; 5] =
        [TunnelKind::Ipip, TunnelKind::Sit, TunnelKind::Ip6Tnl, TunnelKind::Gre, TunnelKind::Ip6Gre];

    /// The kernel's name of the kind.
    pub(crate) fn name(self) -> &'static str {
        match self {
            TunnelKind::Ipip => "ipip",
            TunnelKind::Sit => "sit",
            TunnelKind::Ip6Tnl => "ip6tnl",
            TunnelKind::Gre => "gre",
            TunnelKind::Ip6Gre => "ip6gre",
        }
    }

    /// The name of the device that set-up makes.
    pub(crate) fn device(self) -> String {
        format!("lvsd-{}", self.name())
    }
}

/// One change. What was before is in it, so that it can be taken back exactly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A setting under /proc/sys.
    Sysctl { key: String, old: String, new: String },
    /// A virtual address on `lo`.
    Address { dev: String, ip: IpAddr },
    /// A tunnel device of the kernel.
    Tunnel { dev: String, kind: TunnelKind, local: IpAddr },
    /// Our decapsulator; `fresh` unless one was there, which then only gets to know the present addresses.
    Decap { dev: String, pin_dir: PathBuf, fresh: bool },
    /// The MSS that a route announces.
    Advmss { route: Route, dev: String, new: u32 },
}

/// What taking a step back came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reverted {
    /// It is as before.
    Done,
    /// Somebody has changed it since, so it was left; why.
    Left(String),
}

impl Step {
    /// The command that does the same.
    pub(crate) fn command(&self) -> String {
        match self {
            Step::Sysctl { key, new, .. } => sysctl::command(key, new),
            Step::Address { dev, ip } => add_address(*ip, dev),
            Step::Tunnel { dev, kind, local } => {
                let mode = if *kind == TunnelKind::Ip6Tnl { " mode any" } else { "" };
                format!("ip link add {dev} up type {}{mode} local {local}", kind.name())
            }
            Step::Decap { dev, .. } => format!("lvsctl realserver decap --dev {dev}"),
            Step::Advmss { route, dev, new } => change_route(route, dev, *new),
        }
    }

    /// Makes the change.
    pub(crate) fn apply(&self, rtnl: &Rtnl) -> Result<(), Error> {
        let failed = |e: Errno| Error::os(self.command(), e);
        match self {
            Step::Sysctl { key, new, .. } => sysctl::write(key, new),
            Step::Address { dev, ip } => {
                let index = rtnl.interface(dev).map_err(failed)?.index;
                rtnl.add_address(index, *ip).map_err(|e| match e {
                    Errno::ACCESS | Errno::OPNOTSUPP if ip.is_ipv6() => Error::NoIpv6 { dev: dev.clone() },
                    e => failed(e),
                })
            }
            Step::Tunnel { dev, kind, local } => rtnl.add_tunnel(dev, *kind, *local).map_err(|e| match e {
                Errno::OPNOTSUPP => Error::NoTunnelDevice { kind: kind.name() },
                e => failed(e),
            }),
            Step::Decap { dev, pin_dir, .. } => decap::load(dev, pin_dir).map(|_| ()),
            Step::Advmss { route, new, .. } => rtnl.set_advmss(route, Some(*new)).map_err(failed),
        }
    }

    /// Takes the change back, if it is still there.
    pub(crate) fn revert(&self, rtnl: &Rtnl) -> Result<Reverted, Error> {
        let failed = |e: Errno| Error::os(format!("taking back `{}'", self.command()), e);
        let gone = || Ok(Reverted::Left(format!("`{}': it is gone already", self.command())));
        match self {
            Step::Sysctl { key, old, new } => match sysctl::read(key)? {
                Some(now) if now == *new => {
                    sysctl::write(key, old)?;
                    Ok(Reverted::Done)
                }
                Some(now) if now == *old => Ok(Reverted::Done),
                Some(now) => Ok(Reverted::Left(format!("{key}: somebody has set it to {now} since"))),
                None => gone(),
            },
            Step::Address { dev, ip } => {
                let index = match rtnl.interface(dev) {
                    Ok(interface) => interface.index,
                    Err(Errno::NODEV) => return gone(),
                    Err(e) => return Err(failed(e)),
                };
                match rtnl.remove_address(index, *ip) {
                    Ok(()) => Ok(Reverted::Done),
                    Err(Errno::ADDRNOTAVAIL) => gone(),
                    Err(e) => Err(failed(e)),
                }
            }
            Step::Tunnel { dev, .. } => match rtnl.interface(dev) {
                Ok(interface) => rtnl.remove_link(interface.index).map(|()| Reverted::Done).map_err(failed),
                Err(Errno::NODEV) => gone(),
                Err(e) => Err(failed(e)),
            },
            Step::Decap { fresh: false, .. } => Ok(Reverted::Done),
            Step::Decap { dev, pin_dir, .. } => match decap::unload(dev, pin_dir) {
                Ok(true) => Ok(Reverted::Done),
                Ok(false) | Err(Error::NoSuchInterface(_)) => gone(),
                Err(e) => Err(e),
            },
            Step::Advmss { route, new, .. } => {
                let routes = rtnl.routes().map_err(failed)?;
                let now = routes.iter().find(|r| same_route(r, route)).map(|r| r.advmss);
                match now {
                    Some(mss) if mss == Some(*new) => {
                        rtnl.set_advmss(route, route.advmss).map(|()| Reverted::Done).map_err(failed)
                    }
                    Some(mss) if mss == route.advmss => Ok(Reverted::Done),
                    Some(_) => Ok(Reverted::Left(format!("`{}': changed since", self.command()))),
                    None => gone(),
                }
            }
        }
    }

    /// The interface that it is about; None where it is about none, or all.
    pub(crate) fn interface(&self) -> Option<&str> {
        match self {
            Step::Sysctl { key, .. } => {
                let (_, name, _) = sysctl::of_interface(key)?;
                Some(name)
            }
            Step::Address { dev, .. }
            | Step::Tunnel { dev, .. }
            | Step::Decap { dev, .. }
            | Step::Advmss { dev, .. } => Some(dev),
        }
    }

    /// The same on an interface that has another name now.
    pub(crate) fn renamed(mut self, name: &str) -> Step {
        match &mut self {
            Step::Sysctl { key, .. } => {
                if let Some((before, _, after)) = sysctl::of_interface(key) {
                    *key = format!("{before}{name}{after}");
                }
            }
            Step::Address { dev, .. }
            | Step::Tunnel { dev, .. }
            | Step::Decap { dev, .. }
            | Step::Advmss { dev, .. } => *dev = name.into(),
        }
        self
    }

    /// One line of the record.
    pub(crate) fn line(&self) -> String {
        match self {
            Step::Sysctl { key, old, new } => format!("sysctl {key} {old} {new}"),
            Step::Address { dev, ip } => format!("address {dev} {ip}"),
            Step::Tunnel { dev, kind, local } => format!("tunnel {dev} {} {local}", kind.name()),
            Step::Decap { dev, pin_dir, fresh } => {
                format!("decap {dev} {} {}", if *fresh { "fresh" } else { "again" }, pin_dir.display())
            }
            Step::Advmss { route, dev, new } => {
                let or_none = |v: Option<String>| v.unwrap_or_else(|| "none".into());
                format!(
                    "advmss {dev} {} {}/{} {} {} {} {new}",
                    route.index.unwrap_or(0),
                    route.to,
                    route.prefix,
                    or_none(route.gateway.map(|g| g.to_string())),
                    route.metric,
                    or_none(route.advmss.map(|m| m.to_string())),
                )
            }
        }
    }

    /// Reads a line of the record; None for what is none.
    pub(crate) fn parse(line: &str) -> Option<Step> {
        let (word, rest) = line.split_once(' ')?;
        let w: Vec<&str> = rest.split(' ').collect();
        match (word, w.as_slice()) {
            ("sysctl", [key, old, new]) => {
                // The record says which file is written: none but settings of the network.
                let plain = key.starts_with("net/") && !key.split('/').any(|part| part == "..");
                plain.then(|| Step::Sysctl { key: (*key).into(), old: (*old).into(), new: (*new).into() })
            }
            ("address", [dev, ip]) => Some(Step::Address { dev: (*dev).into(), ip: ip.parse().ok()? }),
            ("tunnel", [dev, kind, local]) => Some(Step::Tunnel {
                dev: (*dev).into(),
                kind: TunnelKind::ALL.into_iter().find(|k| k.name() == *kind)?,
                local: local.parse().ok()?,
            }),
            ("decap", [dev, how @ ("fresh" | "again"), ..]) => {
                let pin_dir = rest.splitn(3, ' ').nth(2).filter(|dir| !dir.is_empty())?;
                Some(Step::Decap { dev: (*dev).into(), pin_dir: pin_dir.into(), fresh: *how == "fresh" })
            }
            ("advmss", [dev, index, to, gateway, metric, old, new]) => {
                let (to, prefix) = to.split_once('/')?;
                let number = |text: &str| match text {
                    "none" => Some(None),
                    text => text.parse().ok().map(Some),
                };
                let route = Route {
                    to: to.parse().ok()?,
                    prefix: prefix.parse().ok()?,
                    gateway: if *gateway == "none" { None } else { Some(gateway.parse().ok()?) },
                    index: Some(index.parse().ok()?),
                    metric: metric.parse().ok()?,
                    source: None,
                    protocol: String::new(),
                    link_scope: false,
                    mtu: None,
                    advmss: number(old)?,
                    fixed: false,
                };
                Some(Step::Advmss { route, dev: (*dev).into(), new: new.parse().ok()? })
            }
            _ => None,
        }
    }
}

/// Whether two readings are of one route.
pub(crate) fn same_route(a: &Route, b: &Route) -> bool {
    (a.to, a.prefix, a.gateway, a.index, a.metric) == (b.to, b.prefix, b.gateway, b.index, b.metric)
}

/// The command that puts a virtual address where it belongs.
pub(crate) fn add_address(ip: IpAddr, dev: &str) -> String {
    let more = if ip.is_ipv6() { " preferred_lft 0 nodad" } else { "" };
    format!("ip address add {ip}/{} dev {dev}{more}", host_prefix(ip))
}

/// The command that makes a route announce an MSS and leaves the rest as it is.
pub(crate) fn change_route(route: &Route, dev: &str, mss: u32) -> String {
    let six = if route.to.is_ipv6() { " -6" } else { "" };
    let to = if route.prefix == 0 { "default".to_owned() } else { format!("{}/{}", route.to, route.prefix) };
    let mut line = format!("ip{six} route change {to}");
    // Writing to a String cannot fail.
    if let Some(gateway) = route.gateway {
        let via = if gateway.is_ipv6() && !route.to.is_ipv6() { "via inet6" } else { "via" };
        let _ = write!(line, " {via} {gateway}");
    }
    let _ = write!(line, " dev {dev}");
    if !matches!(route.protocol.as_str(), "" | "boot") {
        let _ = write!(line, " proto {}", route.protocol);
    }
    if route.link_scope && !route.to.is_ipv6() {
        line.push_str(" scope link");
    }
    if let Some(source) = route.source {
        let _ = write!(line, " src {source}");
    }
    if route.metric != 0 {
        let _ = write!(line, " metric {}", route.metric);
    }
    if let Some(mtu) = route.mtu {
        let _ = write!(line, " mtu {mtu}");
    }
    let _ = write!(line, " advmss {mss}");
    line
}

/// Whether a file's name can stand in a record: it must end where its line ends.
pub(crate) fn recordable(path: &Path) -> bool {
    path.to_str().is_some_and(|p| !p.is_empty() && !p.contains(['\n', '\r']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(to: &str, prefix: u8) -> Route {
        Route {
            to: to.parse().unwrap(),
            prefix,
            gateway: None,
            index: Some(7),
            metric: 0,
            source: None,
            protocol: String::new(),
            link_scope: false,
            mtu: None,
            advmss: None,
            fixed: false,
        }
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        let gateway = Some("10.0.0.1".parse().unwrap());
        let steps = [
            Step::Sysctl { key: "net/ipv4/conf/eth0.7/arp_ignore".into(), old: "0".into(), new: "1".into() },
            Step::Address { dev: "lo".into(), ip: "2001:db8::10".parse().unwrap() },
            Step::Tunnel {
                dev: "lvsd-ip6gre".into(),
                kind: TunnelKind::Ip6Gre,
                local: "2001:db8::11".parse().unwrap(),
            },
            Step::Decap { dev: "eth0".into(), pin_dir: "/sys/fs/bpf/with a blank".into(), fresh: true },
            Step::Decap { dev: "eth0".into(), pin_dir: "/x".into(), fresh: false },
            Step::Advmss {
                route: Route { gateway, metric: 100, ..route("0.0.0.0", 0) },
                dev: "eth0".into(),
                new: 1420,
            },
            Step::Advmss {
                route: Route { advmss: Some(1460), ..route("2001:db8::", 64) },
                dev: "e".into(),
                new: 1,
            },
        ];
        for step in steps {
            assert_eq!(Step::parse(&step.line()), Some(step));
        }
    }

    #[test]
    fn steps_follow_an_interface_to_its_new_name() {
        for (line, on, then) in [
            (
                "sysctl net/ipv4/conf/eth0.7/arp_ignore 0 1",
                Some("eth0.7"),
                "sysctl net/ipv4/conf/wan/arp_ignore 0 1",
            ),
            ("sysctl net/ipv4/conf/all/arp_ignore 0 1", None, "sysctl net/ipv4/conf/all/arp_ignore 0 1"),
            ("sysctl net/ipv4/ip_forward 0 1", None, "sysctl net/ipv4/ip_forward 0 1"),
            ("address lo 192.0.2.1", Some("lo"), "address wan 192.0.2.1"),
            ("tunnel lvsd-gre gre 10.0.0.1", Some("lvsd-gre"), "tunnel wan gre 10.0.0.1"),
            ("decap eth0 fresh /a b", Some("eth0"), "decap wan fresh /a b"),
            (
                "advmss eth0 7 10.0.0.0/8 none 0 none 1420",
                Some("eth0"),
                "advmss wan 7 10.0.0.0/8 none 0 none 1420",
            ),
        ] {
            let step = Step::parse(line).unwrap();
            assert_eq!(step.interface(), on, "{line}");
            assert_eq!(step.renamed("wan").line(), then);
        }
    }

    #[test]
    fn other_lines_are_none() {
        for line in [
            "",
            "sysctl",
            "sysctl net/ipv4/ip_forward 0",
            "sysctl kernel/core_pattern core |x",
            "sysctl net/../kernel/panic 0 1",
            "address lo 300.1.1.1",
            "tunnel ipip 10.0.0.1",
            "tunnel v vxlan 10.0.0.1",
            "decap eth0 fresh",
            "decap eth0 fresh ",
            "decap eth0 maybe /x",
            "advmss eth0 7 10.0.0.0 none 0 none 1420",
            "advmss eth0 7 10.0.0.0/8 none 0 none",
            "reboot now please",
        ] {
            assert_eq!(Step::parse(line), None, "{line}");
        }
    }

    #[test]
    fn commands() {
        let mut r = Route {
            gateway: Some("10.0.0.1".parse().unwrap()),
            protocol: "dhcp".into(),
            source: Some("10.0.0.11".parse().unwrap()),
            metric: 100,
            mtu: Some(1400),
            ..route("0.0.0.0", 0)
        };
        assert_eq!(
            change_route(&r, "eth0", 1420),
            "ip route change default via 10.0.0.1 dev eth0 proto dhcp src 10.0.0.11 metric 100 mtu 1400 advmss 1420"
        );
        r = Route { protocol: "kernel".into(), link_scope: true, ..route("10.0.0.0", 24) };
        assert_eq!(
            change_route(&r, "eth0", 1440),
            "ip route change 10.0.0.0/24 dev eth0 proto kernel scope link advmss 1440"
        );
        assert_eq!(
            add_address("2001:db8::1".parse().unwrap(), "lo"),
            "ip address add 2001:db8::1/128 dev lo preferred_lft 0 nodad"
        );
        let kind = TunnelKind::Ip6Tnl;
        let step = Step::Tunnel { dev: kind.device(), kind, local: "2001:db8::1".parse().unwrap() };
        assert_eq!(step.command(), "ip link add lvsd-ip6tnl up type ip6tnl mode any local 2001:db8::1");
    }
}
