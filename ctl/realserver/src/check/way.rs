//! The way back to the clients.

use std::net::IpAddr;

use super::Finding;
use crate::error::Error;
use crate::machine::{Link, Machine, family_name, host_prefix};
use crate::wish::Question;

/// Families of the virtual addresses, IPv4 first.
fn families(q: &Question) -> impl Iterator<Item = bool> {
    [false, true].into_iter().filter(|v6| q.vips.iter().any(|ip| ip.is_ipv6() == *v6))
}

fn ip(v6: bool) -> &'static str {
    if v6 { "ip -6" } else { "ip" }
}

/// Clients of a family with their gateway: None where there is no route, `Some(None)` where it is on the same link.
fn ways(m: &Machine, q: &Question, v6: bool) -> Vec<(IpAddr, Option<Option<IpAddr>>)> {
    let clients = q.clients.iter().filter(|c| c.is_ipv6() == v6);
    clients.map(|c| (*c, m.path(*c).map(|p| p.gateway))).collect()
}

/// Direct routing and tunnels: answers go to the clients past the director.
pub(super) fn direct(m: &Machine, q: &Question, at: &Link, found: &mut Vec<Finding>) {
    for v6 in families(q) {
        let ip = ip(v6);
        // What the route announces is not lost by mending it.
        let mss = m
            .default_route(v6)
            .and_then(|r| r.advmss)
            .map(|mss| format!(" advmss {mss}"))
            .unwrap_or_default();
        let by_director = |to: String| Finding {
            id: "way-by-director",
            what: format!(
                "{to} goes through the director, which takes answers from its own address for forged ones"
            ),
            mend: format!("{ip} route replace default via ROUTER{mss}"),
        };
        let is_director = |gateway: Option<IpAddr>| gateway.is_some_and(|g| q.directors.contains(&g));
        let add = format!("{ip} route add default via ROUTER dev {}", at.name);
        let clients = ways(m, q, v6);
        for (client, gateway) in &clients {
            match gateway {
                None => found.push(Finding {
                    id: "no-route",
                    what: format!("there is no route to the client {client}: it gets no answer"),
                    mend: add.clone(),
                }),
                Some(g) if is_director(*g) => found.push(by_director(format!("the way back to {client}"))),
                Some(_) => {}
            }
        }
        if !clients.is_empty() {
            continue;
        }
        match m.default_route(v6) {
            None => found.push(Finding {
                id: "no-default-route",
                what: format!(
                    "there is no default route for {}: clients beyond this server's own networks get no answer (where there \
                     are none, name one of them by --client)",
                    family_name(v6)
                ),
                mend: add,
            }),
            Some(route) if is_director(route.gateway) => {
                found.push(by_director(format!("the default route for {}", family_name(v6))));
            }
            Some(_) => {}
        }
    }
}

/// Address translation: answers must go back through the director.
pub(super) fn nat(m: &Machine, q: &Question, found: &mut Vec<Finding>) -> Result<(), Error> {
    for v6 in families(q) {
        let director = q.directors.iter().find(|d| d.is_ipv6() == v6);
        let director = director.ok_or(Error::NeedsDirector { family: family_name(v6) })?;
        let ip = ip(v6);
        let clients = ways(m, q, v6);
        for (client, gateway) in &clients {
            let host = host_prefix(*client);
            let mend = format!("{ip} route replace {client}/{host} via {director}");
            match gateway {
                Some(Some(g)) if g == director => {}
                None => found.push(Finding {
                    id: "no-route",
                    what: format!("there is no route to the client {client}: it gets no answer"),
                    mend: format!("{ip} route add default via {director}"),
                }),
                Some(None) => found.push(Finding {
                    id: "nat-bypass",
                    what: format!(
                        "the client {client} is on a network of this server's own: answers reach it past the director, with \
                         an address that it never called"
                    ),
                    mend,
                }),
                Some(Some(g)) => found.push(Finding {
                    id: "nat-gateway",
                    what: format!("answers to {client} go by {g}, not by the director {director}, which must translate them"),
                    mend,
                }),
            }
        }
        if !clients.is_empty() {
            continue;
        }
        let route = m.default_route(v6);
        if route.is_some_and(|r| r.gateway == Some(*director)) {
            continue;
        }
        found.push(match route.map(|r| r.gateway) {
            None => Finding {
                id: "no-default-route",
                what: format!("there is no default route for {}: it must lead to the director {director}", family_name(v6)),
                mend: format!("{ip} route add default via {director}"),
            },
            Some(other) => Finding {
                id: "nat-gateway",
                what: format!(
                    "the default gateway is {}, not the director {director}: answers pass it by, untranslated",
                    other.map_or_else(|| "none".into(), |g| g.to_string())
                ),
                mend: format!("{ip} route replace default via {director}"),
            },
        });
    }
    Ok(())
}
