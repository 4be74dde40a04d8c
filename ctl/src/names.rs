//! Names of hosts and ports, both ways, with a bound on the time that a name server may take.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use ipvs_netlink::Af;

/// Protocol numbers (IANA).
pub const TCP: u8 = 6;
/// User datagrams.
pub const UDP: u8 = 17;
/// Stream control transmission.
pub const SCTP: u8 = 132;

/// Name look-ups.
pub trait Names {
    /// An address of a host, of the preferred family if it has one (IPv4 when there is no preference).
    fn addr(&self, name: &str, prefer: Option<Af>) -> Option<IpAddr>;
    /// A port by its name and protocol.
    fn port(&self, name: &str, protocol: u8) -> Option<u16>;
    /// A host's name.
    fn name_of_addr(&self, addr: IpAddr) -> Option<String>;
    /// A port's name.
    fn name_of_port(&self, port: u16, protocol: u8) -> Option<String>;
}

/// A services database in the form of `/etc/services`; of several lines for a name or port the first counts.
#[derive(Default, Debug)]
pub struct Services {
    by_name: HashMap<(String, String), u16>,
    by_port: HashMap<(u16, String), String>,
}

impl Services {
    /// Reads the text; lines that make no sense are passed over, as the C library does.
    pub fn parse(text: &str) -> Services {
        let mut services = Services::default();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            let (Some(name), Some((port, protocol))) =
                (words.next(), words.next().and_then(|w| w.split_once('/')))
            else {
                continue;
            };
            let Ok(port) = port.parse::<u16>() else { continue };
            services.by_port.entry((port, protocol.to_owned())).or_insert_with(|| name.to_owned());
            for name in std::iter::once(name).chain(words) {
                services.by_name.entry((name.to_owned(), protocol.to_owned())).or_insert(port);
            }
        }
        services
    }

    /// The port of a name.
    pub fn port(&self, name: &str, protocol: u8) -> Option<u16> {
        self.by_name.get(&(name.to_owned(), protocol_name(protocol).to_owned())).copied()
    }

    /// The name of a port.
    pub fn name(&self, port: u16, protocol: u8) -> Option<&str> {
        self.by_port.get(&(port, protocol_name(protocol).to_owned())).map(String::as_str)
    }
}

/// The protocol as the services database spells it. Services by firewall mark have none; their names are TCP's.
fn protocol_name(protocol: u8) -> &'static str {
    match protocol {
        UDP => "udp",
        SCTP => "sctp",
        _ => "tcp",
    }
}

/// How long one look-up for a command may take.
const ADDR_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a listing waits for one name; after the first that takes longer it prints numbers.
const NAME_TIMEOUT: Duration = Duration::from_secs(3);

/// The machine's own names: `/etc/services`, and the C library's resolver in a thread of its own.
#[derive(Default)]
pub struct SystemNames {
    services: OnceLock<Services>,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    names: HashMap<IpAddr, Option<String>>,
    resolver_is_slow: bool,
}

impl SystemNames {
    fn services(&self) -> &Services {
        self.services.get_or_init(|| {
            // Without the file there are no names, only numbers.
            Services::parse(&std::fs::read_to_string("/etc/services").unwrap_or_default())
        })
    }
}

impl Names for SystemNames {
    fn addr(&self, name: &str, prefer: Option<Af>) -> Option<IpAddr> {
        let name = name.to_owned();
        let found = bounded(ADDR_TIMEOUT, move || {
            dns_lookup::lookup_host(&name).ok().map(|a| a.collect::<Vec<_>>())
        })??;
        let want = prefer.unwrap_or(Af::V4);
        found.iter().find(|&&a| Af::from(a) == want).or(found.first()).copied()
    }

    fn port(&self, name: &str, protocol: u8) -> Option<u16> {
        self.services().port(name, protocol)
    }

    fn name_of_addr(&self, addr: IpAddr) -> Option<String> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = cache.names.get(&addr) {
            return known.clone();
        }
        if cache.resolver_is_slow {
            return None;
        }
        let answer = bounded(NAME_TIMEOUT, move || dns_lookup::lookup_addr(&addr).ok());
        cache.resolver_is_slow = answer.is_none();
        let name = answer.flatten();
        cache.names.insert(addr, name.clone());
        name
    }

    fn name_of_port(&self, port: u16, protocol: u8) -> Option<String> {
        self.services().name(port, protocol).map(str::to_owned)
    }
}

/// Runs a look-up in a thread; `None` if it takes longer. The thread is left behind then and ends with the process.
fn bounded<T: Send + 'static>(limit: Duration, lookup: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (send, receive) = mpsc::channel();
    std::thread::Builder::new()
        .name("names".into())
        .spawn(move || {
            // The receiver is gone after the limit.
            let _ = send.send(lookup());
        })
        .ok()?;
    receive.recv_timeout(limit).ok()
}

/// No names at all: for numeric output and tests.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoNames;

impl Names for NoNames {
    fn addr(&self, _: &str, _: Option<Af>) -> Option<IpAddr> {
        None
    }
    fn port(&self, _: &str, _: u8) -> Option<u16> {
        None
    }
    fn name_of_addr(&self, _: IpAddr) -> Option<String> {
        None
    }
    fn name_of_port(&self, _: u16, _: u8) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_database() {
        let s = Services::parse(
            "# comment\nhttp 80/tcp www web # more\nhttp-again 80/tcp\nwww 81/tcp\ndomain\t53/udp\nbad\nbad x/tcp\n",
        );
        assert_eq!(s.port("http", TCP), Some(80));
        assert_eq!(s.port("www", TCP), Some(80));
        assert_eq!(s.port("http", UDP), None);
        assert_eq!(s.name(80, TCP), Some("http"));
        assert_eq!(s.name(53, UDP), Some("domain"));
        assert_eq!(s.name(53, TCP), None);
        assert_eq!(s.name(80, SCTP), None);
    }

    #[test]
    fn slow_lookups_are_given_up() {
        let (keep, wait) = mpsc::channel::<()>();
        let answer = bounded(Duration::from_millis(20), move || {
            let _ = wait.recv();
        });
        assert_eq!(answer, None);
        drop(keep);
        assert_eq!(bounded(Duration::from_secs(10), || 5), Some(5));
    }

    #[test]
    fn the_machine_knows_itself() {
        let names = SystemNames::default();
        assert_eq!(names.addr("localhost", None), Some("127.0.0.1".parse().unwrap()));
        assert_eq!(names.addr("", None), None);
    }
}
