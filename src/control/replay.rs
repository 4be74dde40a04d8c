//! `lvsd replay`: a capture in, what a director would send out, without network and in the capture's own time.
//!
//! The configuration is a state file (the lines of `ipvsadm -S -n`, `--set`, `#sysctl`) with the network added:
//!
//! ```text
//! interface c0 02:00:00:00:00:d0 mtu 1500
//! address c0 10.0.0.254/24
//! route 10.2.0.0/16 via 10.0.0.253
//! neighbour 10.0.0.253 02:00:00:00:00:c1
//! ```
//!
//! A frame comes in by the interface whose MAC it is sent to; one to another MAC comes in by the first. The device of a
//! route or neighbour is the interface on whose subnet its next hop is.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use ipvs_netlink::{Backend, Saved, SavedError, parse_line};

use super::error::refusal;
use crate::conn::{Config, ConnTable};
use crate::engine::{Director, Worker};
use crate::io::pcap::{self, ReplayError, ReplaySummary};
use crate::route::{
    Event, IfAddr, Link, LinkKind, Mac, NeighState, Place, PortId, Route, RouteKind, Routes, Via,
};
use crate::time::Now;

/// Connections that a replay holds, of each family.
const MAX_CONNECTIONS: u32 = 1 << 16;

/// Why a replay can't be made.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Failure {
    #[error("{path}: {error}")]
    File { path: String, error: std::io::Error },
    #[error("{path}: line {line}: {error}")]
    Line { path: String, line: usize, error: LineError },
    #[error("{path}: no 'interface NAME MAC' line: a director needs one")]
    NoInterface { path: String },
    #[error("--in and --out are the same file, {path}: give --out another")]
    SameFile { path: String },
    #[error("{path}: {error}")]
    Packets { path: String, error: ReplayError },
    #[error("making a director: {0}")]
    Director(String),
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum LineError {
    #[error(transparent)]
    Saved(#[from] SavedError),
    #[error("{0}")]
    Refused(String),
    #[error("'{value}' is no {what}")]
    Value { what: &'static str, value: String },
    #[error("no interface is called '{0}'")]
    NoInterface(String),
    #[error("{0} is on no interface's subnet")]
    NotOnLink(IpAddr),
    #[error("expected: {0}")]
    Usage(&'static str),
}

#[derive(Debug)]
struct Interface {
    name: String,
    mac: Mac,
    subnets: Vec<IpNetwork>,
}

/// The network of a replay, and the lines that are not about it.
#[derive(Debug, Default)]
struct Network {
    interfaces: Vec<Interface>,
    events: Vec<Event>,
}

fn value<T: std::str::FromStr>(what: &'static str, text: &str) -> Result<T, LineError> {
    text.parse().map_err(|_| LineError::Value { what, value: text.to_owned() })
}

fn mac(text: &str) -> Result<Mac, LineError> {
    let bad = || LineError::Value { what: "MAC address", value: text.to_owned() };
    let mut out = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut out {
        let part = parts.next().filter(|p| p.len() == 2).ok_or_else(bad)?;
        *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
    }
    if parts.next().is_some() { Err(bad()) } else { Ok(out) }
}

impl Network {
    fn index(&self, position: usize) -> u32 {
        // Interface indexes begin at 1.
        u32::try_from(position + 1).unwrap_or(u32::MAX)
    }

    fn on_link(&self, addr: IpAddr) -> Result<u32, LineError> {
        let found = self.interfaces.iter().position(|i| i.subnets.iter().any(|s| s.contains(addr)));
        found.map(|i| self.index(i)).ok_or(LineError::NotOnLink(addr))
    }

    /// Takes a line that is about the network; `false` for all others.
    fn line(&mut self, line: &str) -> Result<bool, LineError> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["interface", name, addr] => self.interface(name, mac(addr)?, 1500),
            ["interface", name, addr, "mtu", mtu] => self.interface(name, mac(addr)?, value("MTU", mtu)?),
            ["interface", ..] => return Err(LineError::Usage("interface NAME MAC [mtu N]")),
            ["address", name, net] => self.address(name, value("address with prefix length", net)?)?,
            ["address", ..] => return Err(LineError::Usage("address INTERFACE ADDRESS/LENGTH")),
            ["route", net, "via", gateway] => {
                let gateway: IpAddr = value("address", gateway)?;
                let ifindex = self.on_link(gateway)?;
                let net: IpNetwork = value("network", net)?;
                self.events.push(route(net, Some(gateway), ifindex, RouteKind::Unicast, 254));
            }
            ["route", ..] => return Err(LineError::Usage("route NETWORK/LENGTH via ADDRESS")),
            ["neighbour", addr, lladdr] => {
                let addr: IpAddr = value("address", addr)?;
                let ifindex = self.on_link(addr)?;
                let mac = Some(mac(lladdr)?);
                self.events.push(Event::NeighNew { ifindex, addr, mac, state: NeighState::Permanent });
            }
            ["neighbour", ..] => return Err(LineError::Usage("neighbour ADDRESS MAC")),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn interface(&mut self, name: &str, mac: Mac, mtu: u32) {
        let ifindex = self.index(self.interfaces.len());
        self.events.push(Event::LinkNew(Link {
            ifindex,
            name: name.to_owned(),
            mac: Some(mac),
            mtu,
            up: true,
            running: true,
            kind: LinkKind::Other,
            parent: None,
        }));
        self.interfaces.push(Interface { name: name.to_owned(), mac, subnets: Vec::new() });
    }

    fn address(&mut self, name: &str, net: IpNetwork) -> Result<(), LineError> {
        let at = self.interfaces.iter().position(|i| i.name == name);
        let at = at.ok_or_else(|| LineError::NoInterface(name.to_owned()))?;
        let ifindex = self.index(at);
        let host = if net.is_ipv4() { 32 } else { 128 };
        self.events.push(Event::AddrNew(IfAddr {
            ifindex,
            addr: net.ip(),
            prefix: net.prefix(),
            scope: 0,
            secondary: false,
            unusable: false,
        }));
        let own = IpNetwork::new(net.ip(), host).unwrap_or(net);
        self.events.push(route(own, None, ifindex, RouteKind::Local, 255));
        if net.prefix() < host {
            self.events.push(route(net, None, ifindex, RouteKind::Unicast, 254));
        }
        self.interfaces[at].subnets.push(net);
        Ok(())
    }
}

fn route(net: IpNetwork, gateway: Option<IpAddr>, ifindex: u32, kind: RouteKind, table: u32) -> Event {
    let route = Route {
        table,
        family: net.network().into(),
        dst: (net.network(), net.prefix()),
        metric: 0,
        tos: 0,
        kind,
        prefsrc: None,
        mtu: 0,
        via: vec![Via { ifindex, gateway, weight: 1 }],
    };
    Event::RouteNew { route, place: Place::Last }
}

fn apply(director: &Director, line: &str) -> Result<(), LineError> {
    let saved = parse_line(line)?;
    match &saved {
        Saved::Nothing => Ok(()),
        Saved::Service(s) => director.add_service(s),
        Saved::Dest(key, d) => director.add_dest(key, d),
        Saved::Timeouts(t) => director.set_timeouts(*t),
        Saved::Daemon(d) => director.start_daemon(d),
        Saved::Sysctl(s) => director.set_sysctl(&s.name, &s.value),
    }
    .map_err(|errno| LineError::Refused(refusal(director, &saved, errno)))
}

/// What a replay did, and the director that did it, for its counters.
#[derive(Debug)]
pub struct Replayed {
    /// Frames in and out.
    pub summary: ReplaySummary,
    /// Its services, connections and counters are as the last packet left them.
    pub director: Arc<Director>,
}

/// Replays `input` under the configuration in `config` and writes what is sent into `output`.
///
/// # Errors
/// [`Failure`], naming file and line or packet.
pub fn run(config: &Path, input: &Path, output: &Path) -> Result<Replayed, Failure> {
    let name = |p: &Path| p.display().to_string();
    let file = |p: &Path, error| Failure::File { path: name(p), error };
    let text = String::from_utf8(std::fs::read(config).map_err(|e| file(config, e))?).map_err(|e| {
        let what = format!("byte {} (from 0) is no UTF-8 text", e.utf8_error().valid_up_to());
        file(config, std::io::Error::other(what))
    })?;
    let in_line = |line: usize, error| Failure::Line { path: name(config), line: line + 1, error };
    let mut network = Network::default();
    let mut rest = Vec::new();
    for (n, line) in text.lines().enumerate() {
        if !network.line(line).map_err(|e| in_line(n, e))? {
            rest.push((n, line));
        }
    }
    if network.interfaces.is_empty() {
        return Err(Failure::NoInterface { path: name(config) });
    }
    let director = director(&network).map_err(Failure::Director)?;
    for (n, line) in rest {
        apply(&director, line).map_err(|e| in_line(n, e))?;
    }
    let packets = |error| Failure::Packets { path: name(input), error };
    let reader = BufReader::new(File::open(input).map_err(|e| file(input, e))?);
    // Before the output is made, so that a wrong file leaves no other one behind.
    let reader = pcap::checked(reader).map_err(packets)?;
    if same_file(input, output) {
        return Err(Failure::SameFile { path: name(output) });
    }
    let writer = BufWriter::new(File::create(output).map_err(|e| file(output, e))?);
    let macs: Vec<Mac> = network.interfaces.iter().map(|i| i.mac).collect();
    let port = |frame: &[u8]| {
        let to = frame.first_chunk::<6>();
        let at = macs.iter().position(|m| to == Some(m)).unwrap_or(0);
        PortId(u16::try_from(at).unwrap_or(0))
    };
    let mut worker = Worker::new(Arc::clone(&director), 0);
    let summary = pcap::replay(reader, writer, port, &mut worker).map_err(packets)?;
    Ok(Replayed { summary, director })
}

fn same_file(one: &Path, other: &Path) -> bool {
    match (std::fs::metadata(one), std::fs::metadata(other)) {
        (Ok(a), Ok(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

fn director(network: &Network) -> Result<Arc<Director>, String> {
    let ports: Vec<(PortId, &str)> =
        (0..).map(PortId).zip(network.interfaces.iter().map(|i| i.name.as_str())).collect();
    let routes = Arc::new(Routes::new(&ports).map_err(|e| e.to_string())?);
    for event in &network.events {
        routes.apply(event.clone(), Now(0));
    }
    let table = Config { max_v4: MAX_CONNECTIONS, max_v6: MAX_CONNECTIONS, hash_key: [0, 0], shards: 1 };
    let table = ConnTable::new(table).map_err(|e| e.to_string())?;
    Director::new(table, routes, 1, 0).map(Arc::new).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_network_say_what_is_wrong() {
        let mut n = Network::default();
        assert!(n.line("interface c0 02:00:00:00:00:d0").unwrap());
        assert!(n.line("address c0 10.0.0.254/24").unwrap());
        assert!(n.line("neighbour 10.0.0.253 02:00:00:00:00:c1").unwrap());
        assert!(n.line("route 10.2.0.0/16 via 10.0.0.253").unwrap());
        assert!(!n.line("-A -t 10.0.0.1:80 -s rr").unwrap());
        for (line, says) in [
            ("interface c0 02:00", "'02:00' is no MAC address"),
            ("interface c0", "expected: interface NAME MAC [mtu N]"),
            ("interface c0 02:00:00:00:00:d0 mtu x", "'x' is no MTU"),
            ("address c1 10.0.0.1/24", "no interface is called 'c1'"),
            ("address c0 10.0.0.1/33", "'10.0.0.1/33' is no address with prefix length"),
            ("neighbour 10.9.0.1 02:00:00:00:00:c1", "10.9.0.1 is on no interface's subnet"),
            ("route 10.2.0.0/16", "expected: route NETWORK/LENGTH via ADDRESS"),
        ] {
            assert_eq!(n.line(line).unwrap_err().to_string(), says, "{line}");
        }
    }
}
