//! Asking the kernel what the machine has.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path as FilePath;

use rustix::io::Errno;

use super::{AtXdp, Conf, Listener, Machine};
use crate::decap;
use crate::error::Error;
use crate::rtnl::Rtnl;
use crate::sysctl;

/// `TCP_LISTEN` (net/tcp_states.h).
const LISTEN: &str = "0A";
/// `TCP_CLOSE`: what an unconnected UDP socket is in.
const UNCONNECTED: &str = "07";

impl Machine {
    /// Reads it from the network namespace of the calling thread. `ways` are addresses to which the way is asked; XDP
    /// programs are looked at only for `tunnels`, since that takes privilege.
    pub(crate) fn read(rtnl: &Rtnl, ways: &[IpAddr], tunnels: bool) -> Result<Machine, Error> {
        let failed = |what: &'static str| move |e: Errno| Error::os(what, e);
        let mut links = rtnl.links().map_err(failed("reading the interfaces"))?;
        let all = conf("all")?;
        for (link, programs) in &mut links {
            link.conf = conf(&link.name)?;
            if tunnels && !programs.is_empty() {
                link.xdp = decap::look(&link.name, programs)?;
            }
        }
        let mut paths = Vec::new();
        for to in ways {
            match rtnl.path(*to) {
                Ok(path) => paths.push(path),
                Err(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS | Errno::INVAL) => {}
                Err(e) => return Err(Error::os(format!("asking for the way to {to}"), e)),
            }
        }
        Ok(Machine {
            links: links.into_iter().map(|(link, _)| link).collect(),
            addresses: rtnl.all_addresses().map_err(failed("reading the addresses"))?,
            routes: rtnl.routes().map_err(failed("reading the routes"))?,
            all,
            default: conf("default")?,
            forwards_v4: flag("net/ipv4/ip_forward")?,
            forwards_v6: flag("net/ipv6/conf/all/forwarding")?,
            bindv6only: flag("net/ipv6/bindv6only")?,
            listeners: listeners()?,
            paths,
        })
    }
}

fn conf(name: &str) -> Result<Conf, Error> {
    let read = |setting: &str| -> Result<u32, Error> {
        let text = sysctl::read(&format!("net/ipv4/conf/{name}/{setting}"))?;
        // An interface that has gone, or has none: nothing holds there but what `all` says.
        Ok(text.and_then(|t| t.parse().ok()).unwrap_or(0))
    };
    Ok(Conf {
        arp_ignore: read("arp_ignore")?,
        arp_announce: read("arp_announce")?,
        rp_filter: read("rp_filter")?,
    })
}

fn flag(key: &str) -> Result<bool, Error> {
    Ok(sysctl::read(key)?.is_some_and(|v| v != "0"))
}

fn listeners() -> Result<Vec<Listener>, Error> {
    let mut all = Vec::new();
    for (file, tcp) in [("tcp", true), ("tcp6", true), ("udp", false), ("udp6", false)] {
        // /proc/net is the main thread's namespace, which need not be this thread's.
        let path = format!("/proc/thread-self/net/{file}");
        match fs::read_to_string(&path) {
            Ok(text) => all.extend(text.lines().skip(1).filter_map(|line| listener(line, tcp))),
            // no IPv6 here
            Err(_) if file.ends_with('6') && !FilePath::new(&path).exists() => {}
            Err(e) => return Err(Error::os(path, e)),
        }
    }
    all.sort_by_key(|l| (l.port, l.tcp, l.ip));
    all.dedup();
    Ok(all)
}

/// A line of `/proc/net/tcp` and its like: `  0: 0100007F:0050 00000000:0000 0A …`.
fn listener(line: &str, tcp: bool) -> Option<Listener> {
    let mut words = line.split_whitespace();
    let (ip, port) = words.nth(1)?.split_once(':')?;
    let state = words.nth(1)?;
    if state != if tcp { LISTEN } else { UNCONNECTED } {
        return None;
    }
    Some(Listener { ip: hex_address(ip)?, port: u16::from_str_radix(port, 16).ok()?, tcp })
}

/// An address in words of 32 bits, each as this machine would print a number that lies in memory in network order.
fn hex_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

/// For sentences.
pub(crate) fn family_name(v6: bool) -> &'static str {
    if v6 { "IPv6" } else { "IPv4" }
}

impl AtXdp {
    /// The addresses that a decapsulator knows, where there is one.
    pub(crate) fn decap(&self) -> Option<&[IpAddr]> {
        match self {
            AtXdp::Decap(known) => Some(known),
            AtXdp::Nothing | AtXdp::Other { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_net() {
        let tcp =
            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1";
        let got = listener(tcp, true).unwrap();
        assert_eq!(got, Listener { ip: Ipv4Addr::LOCALHOST.into(), port: 8080, tcp: true });
        let open = tcp.replace(" 0A ", " 01 ");
        assert_eq!(listener(&open, true), None);
        let v6 = "  1: B80D0120010000000000000010000000:0050 00000000000000000000000000000000:0000 07 0 0";
        let got = listener(v6, false).unwrap();
        assert_eq!(got, Listener { ip: "2001:db8:0:1::10".parse().unwrap(), port: 80, tcp: false });
        for bad in ["", "0:", "0: x:y 0:0 0A", "0: 01:0050 0:0 0A"] {
            assert_eq!(listener(bad, true), None, "{bad}");
        }
    }
}
