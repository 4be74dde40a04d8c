//! Room for the tunnel's header: a client's full packet must fit the way to the server with that header around it, or the
//! server must have told the client to send less.

use std::net::IpAddr;

use crate::machine::{Link, Machine, Route};
use crate::wish::Mode;

/// What a client's packet may have where nobody says otherwise, bytes.
const CLIENTS_MTU: u32 = 1500;

/// Bytes that the tunnel puts around a packet, at most: for the families in which the server has addresses, or those of the
/// director.
pub(crate) fn overhead(
    m: &Machine,
    ingress: &Link,
    vips: &[IpAddr],
    mode: Mode,
    directors: &[IpAddr],
) -> u32 {
    let v6 = match directors {
        [] => m.own_addresses(ingress.index, vips).any(|ip| ip.is_ipv6()),
        directors => directors.iter().any(IpAddr::is_ipv6),
    };
    // GRE's checksum is the director's choice: room for it is kept.
    let shim = if mode == Mode::Gre { 8 } else { 0 };
    shim + if v6 { 40 } else { 20 }
}

/// A route by which clients are told of a larger MSS than fits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Excess {
    pub(crate) route: Route,
    pub(crate) dev: String,
    /// What fits, bytes.
    pub(crate) fits: u32,
}

/// Whether the ingress has room for a client's full packet and a header of `overhead` bytes.
pub(crate) fn roomy(ingress: &Link, overhead: u32) -> bool {
    ingress.mtu >= CLIENTS_MTU + overhead
}

/// Routes that announce too much; none where the ingress has room for a client's full packet.
pub(crate) fn excess(m: &Machine, ingress: &Link, vips: &[IpAddr], overhead: u32) -> Vec<Excess> {
    if roomy(ingress, overhead) {
        return Vec::new();
    }
    let concerned = m.routes.iter().filter(|r| vips.iter().any(|vip| vip.is_ipv6() == r.to.is_ipv6()));
    let found = concerned.filter_map(|r| {
        // Without one interface it is a route of several next hops, by any.
        let link = r.index.map_or(Some(ingress), |index| m.link_of(index))?;
        if link.loopback || link.noarp {
            return None;
        }
        let headers = if r.to.is_ipv6() { 60 } else { 40 };
        let mtu = r.mtu.unwrap_or(link.mtu).min(link.mtu);
        let announced = r.advmss.unwrap_or(mtu.saturating_sub(headers));
        let fits = ingress.mtu.saturating_sub(overhead + headers);
        (announced > fits).then(|| Excess { route: r.clone(), dev: link.name.clone(), fits })
    });
    found.collect()
}
