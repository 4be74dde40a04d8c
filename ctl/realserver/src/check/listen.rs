//! Who listens.

use std::net::IpAddr;

use super::Finding;
use crate::machine::{Link, Listener, Machine};
use crate::wish::{Mode, Question};

pub(super) fn findings(m: &Machine, q: &Question, at: &Link, found: &mut Vec<Finding>) {
    let called: Vec<IpAddr> = match q.mode {
        // The address is translated to the server's own.
        Mode::Nat => {
            let own = m.own_addresses(at.index, &q.vips);
            own.filter(|ip| q.vips.iter().any(|vip| vip.is_ipv6() == ip.is_ipv6())).collect()
        }
        Mode::Dr | Mode::Ipip | Mode::Gre => q.vips.clone(),
    };
    for port in &q.ports {
        let here: Vec<&Listener> = m.listeners.iter().filter(|l| l.port == *port).collect();
        for ip in &called {
            if here.iter().any(|l| takes(m, l, *ip)) {
                continue;
            }
            let to = match ip {
                IpAddr::V4(_) => format!("{ip}:{port} or 0.0.0.0:{port}"),
                IpAddr::V6(_) => format!("[{ip}]:{port} or [::]:{port}"),
            };
            let mend = format!("let the service listen on {to}");
            let elsewhere: Vec<String> = here.iter().map(|l| l.ip.to_string()).take(4).collect();
            found.push(match elsewhere.is_empty() {
                true => Finding {
                    id: "no-listener",
                    what: format!("nobody listens on {ip} port {port}, by TCP or UDP"),
                    mend,
                },
                false => Finding {
                    id: "listener-elsewhere",
                    what: format!(
                        "port {port} is served on {} only: calls to {ip} are refused",
                        elsewhere.join(", ")
                    ),
                    mend,
                },
            });
        }
    }
}

/// Whether a socket takes what comes for an address. A socket on `::` is held to take IPv4 as well unless the machine says
/// otherwise; what it says itself is not to be seen from outside.
fn takes(m: &Machine, l: &Listener, ip: IpAddr) -> bool {
    let mapped = matches!((l.ip, ip), (IpAddr::V6(l), IpAddr::V4(ip)) if l.to_ipv4_mapped() == Some(ip));
    l.ip == ip
        || mapped
        || (l.ip.is_unspecified() && (l.ip.is_ipv6() == ip.is_ipv6() || (l.ip.is_ipv6() && !m.bindv6only)))
}
