//! Whoever forwards in the middle: the daemon, or one that it is compared with.

use std::time::Duration;

use serde_json::{Value, json};

use super::lab::{
    D1_MAC, Lab, Lvsd, Method, NOBODY, SERVER, SERVER_V6, Serve, VIP, VIP_V6, processors, sibling,
};
use super::process::{Running, output};
use crate::{Datapath, Failure};

/// What is sent, and how it is to get to the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic {
    pub(super) flows: u32,
    /// Of a frame, without frame check sequence.
    pub(super) bytes: u32,
    pub(super) method: Method,
    pub(super) v6: bool,
    pub(super) port: u16,
}

impl Traffic {
    /// The usual: so many flows of 60-byte frames to a DNS server, by NAT.
    pub(super) fn of(flows: u32) -> Traffic {
        Traffic { flows, bytes: 60, method: Method::Nat, v6: false, port: 53 }
    }

    /// What the daemon's limit of connections has to be, where its default is too low.
    fn room(&self) -> Option<u32> {
        (self.flows > DEFAULT_ROOM || self.v6).then(|| self.flows + self.flows / 16)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "flows": self.flows, "frame_bytes": self.bytes, "method": self.method.name(),
            "family": if self.v6 { "ipv6" } else { "ipv4" },
        })
    }
}

/// Connections that a daemon has room for unless told otherwise, with some to spare.
const DEFAULT_ROOM: u32 = 1_000_000;

/// Who forwards UDP from the client to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Forwarder {
    /// The daemon, by NAT from [`VIP`].
    Lvsd(Datapath),
    /// Rings, or XDP, of the same kind with no logic.
    Bare(Datapath),
    /// nftables, DNAT from [`VIP`].
    Nft,
    /// The kernel's `ip_forward`, to the server's own address.
    Routed,
}

impl Forwarder {
    pub(super) fn name(self) -> &'static str {
        match self {
            Forwarder::Lvsd(_) => "lvsd",
            Forwarder::Bare(_) => "bare",
            Forwarder::Nft => "nft",
            Forwarder::Routed => "ip_forward",
        }
    }

    /// Whether XDP redirects its frames, so that the sink must be able to take these.
    fn redirects(self) -> bool {
        matches!(self, Forwarder::Lvsd(Datapath::Xdp) | Forwarder::Bare(Datapath::Xdp))
    }

    /// What frames are sent to.
    pub(super) fn target(self, v6: bool) -> &'static str {
        match (self == Forwarder::Routed, v6) {
            (true, false) => SERVER,
            (true, true) => SERVER_V6,
            (false, false) => VIP,
            (false, true) => VIP_V6,
        }
    }
}

/// A forwarder at work.
pub(super) struct Active<'l> {
    lab: &'l Lab,
    pub(super) lvsd: Option<Lvsd>,
    bare: Option<Running>,
    nft: bool,
    has_tier: bool,
    /// What drops redirected frames at the sink.
    pub(super) sink: Option<Running>,
}

impl<'l> Active<'l> {
    /// Starts a forwarder of UDP traffic, with one worker on the director's processor, where it has workers. Nothing may be
    /// attached to the director's interfaces.
    pub(super) fn start(
        lab: &'l Lab,
        forwarder: Forwarder,
        traffic: &Traffic,
        connections: Option<u32>,
    ) -> Result<Active<'l>, Failure> {
        lab.nothing_attached()?;
        let (_, cpu) = processors()?;
        let has_tier = matches!(forwarder, Forwarder::Lvsd(Datapath::Tc | Datapath::Xdp));
        let sink = forwarder.redirects().then(|| lab.sink()).transpose()?;
        let mut active = Active { lab, lvsd: None, bare: None, nft: false, has_tier, sink };
        match forwarder {
            Forwarder::Lvsd(datapath) => {
                let serve = Serve {
                    datapath,
                    cpu,
                    workers: Some(1),
                    connections: connections.or_else(|| traffic.room()),
                    service: ("-u", traffic.port),
                    method: traffic.method,
                    v6: traffic.v6,
                };
                active.lvsd = Some(Lvsd::start(lab, &serve)?);
            }
            Forwarder::Bare(datapath) => {
                let mut c = lab.director.command_on(cpu, &sibling("lvsd-bench")?);
                c.args(["bare", "--input", "d0", "--output", "d1", "--dst-mac", NOBODY, "--src-mac", D1_MAC]);
                let address = forwarder.target(traffic.v6);
                c.args(["--address", address, "--port", &traffic.port.to_string(), "--seconds", "3600"]);
                c.args(["--datapath", &datapath.to_string()]);
                active.bare = Some(Running::start(&mut c, "bare", &lab.directory)?);
            }
            Forwarder::Nft => {
                nft_dnat(lab, "udp", traffic.port, traffic.v6)?;
                active.nft = true;
            }
            Forwarder::Routed => {}
        }
        Ok(active)
    }

    /// An error if it has ended.
    pub(super) fn must_run(&mut self) -> Result<(), Failure> {
        let process = self.lvsd.as_mut().map(|l| &mut l.process).or(self.bare.as_mut());
        process.map_or(Ok(()), Running::must_run)
    }

    /// Processor time that its process has used; none where the kernel forwards.
    pub(super) fn cpu(&self) -> Result<Option<Duration>, Failure> {
        let process = self.lvsd.as_ref().map(|l| &l.process).or(self.bare.as_ref());
        process.map(Running::cpu).transpose()
    }

    /// How many connections it has made; none where it makes none.
    pub(super) fn connections(&self) -> Result<Option<u64>, Failure> {
        if let Some(lvsd) = &self.lvsd {
            return Ok(Some(lvsd.counter("conn_new")?));
        }
        if !self.nft {
            return Ok(None);
        }
        let text = self.lab.director.run("cat /proc/sys/net/netfilter/nf_conntrack_count")?;
        Ok(Some(text.trim().parse()?))
    }

    /// Packets from clients that the daemon's tier has forwarded; none where there is no tier.
    pub(super) fn tier(&self) -> Result<Option<u64>, Failure> {
        let Some(lvsd) = self.lvsd.as_ref().filter(|_| self.has_tier) else { return Ok(None) };
        lvsd.counter("tier_in_pkts").map(Some)
    }

    /// The daemon's counters that say where frames were lost.
    pub(super) fn losses(&self) -> Result<Value, Failure> {
        let Some(lvsd) = &self.lvsd else { return Ok(Value::Null) };
        let all = lvsd.counters()?;
        let lost = |name: &str| {
            ["drop", "full", "refused", "no_port", "down", "no_verdict", "held", "failed", "unserved"]
                .iter()
                .any(|part| name.contains(part))
        };
        let found = all.into_iter().filter(|(name, n)| *n > 0 && lost(name));
        Ok(found.map(|(name, n)| (name, json!(n))).collect::<serde_json::Map<_, _>>().into())
    }

    /// Ends it.
    pub(super) fn stop(self) -> Result<(), Failure> {
        if let Some(lvsd) = self.lvsd {
            lvsd.process.terminate()?;
        }
        if self.nft {
            remove_nft(self.lab)?;
        }
        Ok(())
    }
}

/// Has nftables translate [`VIP`] to the server for one port of `protocol`. No flowtable: this kernel may lack it.
pub(super) fn nft_dnat(lab: &Lab, protocol: &str, port: u16, v6: bool) -> Result<(), Failure> {
    let (family, vip, server) =
        if v6 { ("ip6", VIP_V6, format!("[{SERVER_V6}]")) } else { ("ip", VIP, SERVER.to_owned()) };
    let rules = format!(
        "table {family} lvsd_bench {{ chain pre {{ type nat hook prerouting priority -100; \
         {family} daddr {vip} {protocol} dport {port} dnat to {server}:{port}; }}; }}"
    );
    output(lab.director.command("nft").arg(rules))?;
    // a flow must not be forgotten before all are there, as the daemon does not forget it
    for setting in ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"] {
        lab.director.run(&format!("echo 300 > /proc/sys/net/netfilter/{setting}"))?;
    }
    Ok(())
}

pub(super) fn remove_nft(lab: &Lab) -> Result<(), Failure> {
    lab.director.run("nft flush ruleset").map(|_| ())
}
