//! Values as ipvsadm reads them: numbers by `strtol(3)`, IPv4 addresses by `inet_aton(3)`, `host[:port]`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipvs_netlink::Af;

use crate::names::Names;

/// A decimal number: blanks and a `+` before it are fine, anything after it is not. `None` also when out of range.
pub fn number(text: &str, min: i64, max: i64) -> Option<i64> {
    let text = text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|n| (min..=max).contains(n))
}

/// An IPv4 address in one to four parts, each decimal, octal (`0…`) or hexadecimal (`0x…`); the last part fills the
/// bytes that are left: `10.0.1` is 10.0.0.1, `24` is 0.0.0.24.
pub fn inet_aton(text: &str) -> Option<Ipv4Addr> {
    let parts = text.split('.').map(aton_part).collect::<Option<Vec<u32>>>()?;
    let (&last, front) = parts.split_last()?;
    if front.len() > 3 || front.iter().any(|&p| p > 255) {
        return None;
    }
    let left = 32 - 8 * front.len() as u32;
    if left < 32 && last >> left != 0 {
        return None;
    }
    let front = front.iter().zip([24, 16, 8]).map(|(&part, shift)| part << shift).sum::<u32>();
    Some(Ipv4Addr::from(front | last))
}

fn aton_part(text: &str) -> Option<u32> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    if digits.starts_with('+') {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

/// Host of an endpoint as typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Host {
    /// An address.
    Addr(IpAddr),
    /// A name to be looked up.
    Name(String),
}

/// Port of an endpoint as typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Port {
    /// A number.
    Number(u16),
    /// A name from the services database.
    Name(String),
}

/// `host[:port]` as typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Before the colon.
    pub host: Host,
    /// After it.
    pub port: Option<Port>,
}

/// What is wrong with an endpoint; the text completes a message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EndpointError {
    /// No host, no port after the colon, or more colons than one.
    #[error("expected host[:port], [v6]:port or a bare IPv6 address")]
    Form,
    /// Not an IPv4 address, nor a name.
    #[error("`{0}' is not an address")]
    Address(String),
    /// Not a port.
    #[error("port `{0}' is outside 0 to 65535")]
    PortRange(String),
    /// Name look-up failed.
    #[error("host `{0}' is unknown")]
    UnknownHost(String),
    /// Service look-up failed.
    #[error("port `{0}' is unknown")]
    UnknownPort(String),
}

impl Endpoint {
    /// Reads `host[:port]`: an IPv6 address stands in brackets when a port follows, and without them when none does.
    ///
    /// # Errors
    /// See [`EndpointError`]; names are not looked up here.
    pub fn parse(text: &str) -> Result<Endpoint, EndpointError> {
        if let Ok(addr) = text.parse::<Ipv6Addr>() {
            return Ok(Endpoint { host: Host::Addr(addr.into()), port: None });
        }
        if let Some(rest) = text.strip_prefix('[') {
            let (host, port) = rest.split_once("]:").ok_or(EndpointError::Form)?;
            let addr: Ipv6Addr = host.parse().map_err(|_| EndpointError::Address(host.to_owned()))?;
            return Ok(Endpoint { host: Host::Addr(addr.into()), port: Some(parse_port(port)?) });
        }
        // A number alone is no address to ipvsadm, though inet_aton(3) would take it: it may be a port without its host.
        if text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(EndpointError::Form);
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(parse_port(port)?)),
            None => (text, None),
        };
        Ok(Endpoint { host: parse_host(host)?, port })
    }

    /// Looks names up. The port is `None` when none was given.
    ///
    /// # Errors
    /// [`EndpointError::UnknownHost`], [`EndpointError::UnknownPort`].
    pub fn resolve(
        &self,
        protocol: u8,
        prefer: Option<Af>,
        names: &dyn Names,
    ) -> Result<(IpAddr, Option<u16>), EndpointError> {
        let addr = match &self.host {
            Host::Addr(addr) => *addr,
            Host::Name(name) => {
                names.addr(name, prefer).ok_or_else(|| EndpointError::UnknownHost(name.clone()))?
            }
        };
        let port = match &self.port {
            None => None,
            Some(Port::Number(n)) => Some(*n),
            Some(Port::Name(name)) => {
                Some(names.port(name, protocol).ok_or_else(|| EndpointError::UnknownPort(name.clone()))?)
            }
        };
        Ok((addr, port))
    }
}

fn parse_host(text: &str) -> Result<Host, EndpointError> {
    if let Some(addr) = inet_aton(text) {
        return Ok(Host::Addr(addr.into()));
    }
    if text.is_empty() {
        return Err(EndpointError::Form);
    }
    let name_like = text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'[' | b']' | b'/' | b'%'));
    // Digits and dots that make no address are a mistyped address; asking a name server would only hide that.
    if !name_like || text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(EndpointError::Address(text.to_owned()));
    }
    Ok(Host::Name(text.to_owned()))
}

fn parse_port(text: &str) -> Result<Port, EndpointError> {
    if let Some(n) = number(text, 0, 65535).and_then(|n| u16::try_from(n).ok()) {
        return Ok(Port::Number(n));
    }
    if text.is_empty() || text.contains([':', ']', ' ']) {
        return Err(EndpointError::Form);
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(EndpointError::PortRange(text.to_owned()));
    }
    Ok(Port::Name(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_strtol() {
        for (text, value) in [
            ("0", Some(0)),
            (" 7", Some(7)),
            ("+7", Some(7)),
            ("007", Some(7)),
            ("-1", Some(-1)),
            ("100", Some(100)),
            ("101", None),
            ("-2", None),
            ("", None),
            ("+", None),
            ("7 ", None),
            ("0x7", None),
            ("99999999999999999999", None),
            ("++7", None),
        ] {
            assert_eq!(number(text, -1, 100), value, "{text:?}");
        }
    }

    #[test]
    fn addresses_as_inet_aton() {
        for (text, addr) in [
            ("10.0.0.1", Some([10, 0, 0, 1])),
            ("10.0.0", Some([10, 0, 0, 0])),
            ("10.0.258", Some([10, 0, 1, 2])),
            ("10.65537", Some([10, 1, 0, 1])),
            ("24", Some([0, 0, 0, 24])),
            ("0x0a.010.0.1", Some([10, 8, 0, 1])),
            ("4294967295", Some([255, 255, 255, 255])),
            ("0", Some([0, 0, 0, 0])),
            ("10.0.0.256", None),
            ("256.0.0.1", None),
            ("10.16777216", None),
            ("4294967296", None),
            ("1.2.3.4.5", None),
            ("1..2", None),
            ("", None),
            ("08", None),
            ("+1", None),
            ("0x", None),
            ("255.255.255.0 ", None),
        ] {
            assert_eq!(inet_aton(text), addr.map(Ipv4Addr::from), "{text:?}");
        }
    }

    fn ok(text: &str) -> (Host, Option<Port>) {
        let e = Endpoint::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        (e.host, e.port)
    }

    fn addr(text: &str) -> Host {
        Host::Addr(text.parse().unwrap())
    }

    #[test]
    fn endpoints() {
        let number = |n| Some(Port::Number(n));
        assert_eq!(ok("10.0.0.1:80"), (addr("10.0.0.1"), number(80)));
        assert_eq!(ok("10.0.0.1"), (addr("10.0.0.1"), None));
        assert_eq!(ok("10.0.0:80"), (addr("10.0.0.0"), number(80)));
        assert_eq!(ok("24:80"), (addr("0.0.0.24"), number(80)));
        assert_eq!(ok("10.0.0.1: 80"), (addr("10.0.0.1"), number(80)));
        assert_eq!(ok("[2001:db8::1]:443"), (addr("2001:db8::1"), number(443)));
        assert_eq!(ok("2001:db8::1"), (addr("2001:db8::1"), None));
        assert_eq!(ok("2001:db8::1:80"), (addr("2001:db8::1:80"), None));
        assert_eq!(ok("localhost:http"), (Host::Name("localhost".into()), Some(Port::Name("http".into()))));
    }

    #[test]
    fn bad_endpoints() {
        for text in
            ["", "80", "0", ":80", "a:1:2", "10.0.0.1:", "[2001:db8::1]", "[2001:db8::1:80", "[2001:db8::1]:"]
        {
            assert_eq!(Endpoint::parse(text), Err(EndpointError::Form), "{text:?}");
        }
        for text in [
            "10.0.0.256:80",
            "[10.0.0.1]:80",
            "[2001:db8::zz]:80",
            " 10.0.0.1:80",
            "fe80::1%eth0",
            "1.2.3.4.5",
        ] {
            assert!(
                matches!(Endpoint::parse(text), Err(EndpointError::Address(_) | EndpointError::Form)),
                "{text:?}"
            );
        }
        for text in ["10.0.0.1:65536", "10.0.0.1:-1", "[::1]:99999999999999999999"] {
            assert!(matches!(Endpoint::parse(text), Err(EndpointError::PortRange(_))), "{text:?}");
        }
    }
}
