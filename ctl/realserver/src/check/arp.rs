//! ARP for the virtual address, and the reverse path filter.

use std::net::IpAddr;

use super::Finding;
use crate::machine::{Conf, Link, Machine};
use crate::step::Step;
use crate::wish::Question;

/// Loose reverse path filtering.
pub(crate) const LOOSE: u32 = 2;
const STRICT: u32 = 1;

/// A setting that keeps ARP for the virtual address away.
pub(crate) struct Setting {
    id: &'static str,
    name: &'static str,
    of: fn(Conf) -> u32,
    /// Values that do, of those that hold on an interface.
    good: fn(u32) -> bool,
    want: u32,
    /// What comes of others.
    harm: &'static str,
}

/// 1 and 2 answer for the interface's own addresses only; 8 would answer for none at all.
static IGNORE: Setting = Setting {
    id: "arp-ignore",
    name: "arp_ignore",
    of: |c| c.arp_ignore,
    good: |v| v == 1 || v == 2,
    want: 1,
    harm: "this server answers ARP requests for the virtual address, or for none, and clients pass the director by",
};

/// 1 still announces an address of the target's network, as the virtual one often is.
static ANNOUNCE: Setting = Setting {
    id: "arp-announce",
    name: "arp_announce",
    of: |c| c.arp_announce,
    good: |v| v >= 2,
    want: 2,
    harm: "this server's own ARP requests tell its neighbours that the virtual address is here",
};

/// Settings that do not keep ARP for a virtual address away from `dev`, or from any interface, with the steps that make them.
pub(crate) fn missing(m: &Machine, dev: Option<&Link>) -> Vec<(&'static Setting, Vec<Step>)> {
    let steps = [&IGNORE, &ANNOUNCE].map(|s| (s, steps(m, dev, s)));
    steps.into_iter().filter(|(_, steps)| !steps.is_empty()).collect()
}

fn steps(m: &Machine, dev: Option<&Link>, s: &Setting) -> Vec<Step> {
    let concerned = |l: &&Link| dev.map_or(l.answers_arp(), |d| d.index == l.index);
    let links: Vec<&Link> = m.links.iter().filter(concerned).collect();
    if links.iter().all(|l| (s.good)((s.of)(l.conf.effective(m.all)))) {
        return Vec::new();
    }
    let on = |name: &str, old: u32| Step::Sysctl {
        key: format!("net/ipv4/conf/{name}/{}", s.name),
        old: old.to_string(),
        new: s.want.to_string(),
    };
    let mut steps = Vec::new();
    let mut all = (s.of)(m.all);
    // The larger of `all`'s and the interface's own holds, so neither may be too large.
    let too_large = |v: u32| v > s.want && !(s.good)(v);
    if too_large(all) || (dev.is_none() && all < s.want) {
        steps.push(on("all", all));
        all = s.want;
    }
    for l in links {
        let own = (s.of)(l.conf);
        if too_large(own) || !(s.good)(own.max(all)) {
            steps.push(on(&l.name, own));
        }
    }
    steps
}

pub(super) fn findings(m: &Machine, q: &Question, at: &Link, found: &mut Vec<Finding>) {
    if !q.vips.iter().any(IpAddr::is_ipv4) {
        return;
    }
    let dev = q.dev.as_ref().map(|_| at);
    for (setting, steps) in missing(m, dev) {
        let commands: Vec<String> = steps.iter().map(Step::command).collect();
        let now: Vec<String> = m
            .links
            .iter()
            .filter(|l| dev.map_or(l.answers_arp(), |d| d.index == l.index))
            .map(|l| (l, (setting.of)(l.conf.effective(m.all))))
            .filter(|(_, v)| !(setting.good)(*v))
            .map(|(l, v)| format!("{v} on {}", l.name))
            .take(4)
            .collect();
        found.push(Finding {
            id: setting.id,
            what: format!("{} is {}: {}", setting.name, now.join(", "), setting.harm),
            mend: commands.join(" && "),
        });
    }
    if one_way(m, at, &q.clients) {
        found.push(strict(&at.name, "answers to clients leave by another interface"));
    }
}

/// A strict reverse path filter at `link`, in the way.
pub(super) fn strict(dev: &str, why: &str) -> Finding {
    let step = Step::Sysctl {
        key: format!("net/ipv4/conf/{dev}/rp_filter"),
        old: STRICT.to_string(),
        new: LOOSE.to_string(),
    };
    Finding {
        id: "rp-filter",
        what: format!(
            "rp_filter is strict on {dev} and {why}: the kernel drops clients' packets there without a word"
        ),
        mend: step.command(),
    }
}

/// Whether the filter at an interface is strict while answers to IPv4 clients leave by another.
pub(crate) fn one_way(m: &Machine, link: &Link, clients: &[IpAddr]) -> bool {
    if link.conf.effective(m.all).rp_filter != STRICT {
        return false;
    }
    let mut clients = clients.iter().filter(|c| c.is_ipv4()).peekable();
    if clients.peek().is_none() {
        return m.default_route(false).is_some_and(|r| r.index.is_some_and(|index| index != link.index));
    }
    clients.any(|c| m.path(*c).is_some_and(|p| p.index != link.index))
}

/// The step that makes an interface's filter loose.
pub(crate) fn loosen(link: &Link) -> Step {
    Step::Sysctl {
        key: format!("net/ipv4/conf/{}/rp_filter", link.name),
        old: link.conf.rp_filter.to_string(),
        new: LOOSE.to_string(),
    }
}
