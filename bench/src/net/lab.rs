//! The one topology: client and server, each in a namespace of its own, and the director between them.
//!
//! ```text
//! client  c0 198.51.100.10 ── d0 198.51.100.1  director  d1 10.0.0.1 ── s0 10.0.0.2  server
//!         2001:db8:1::10         2001:db8:1::1              fd00:a::1     fd00:a::2
//!                                  VIP 192.0.2.10, 2001:db8:2::10
//! ```
//! veth pairs with their default offloads and one queue; the director forwards (`ip_forward`).

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Pid, getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::{Value, json};

use super::forwarder::Traffic;
use super::process::{Directory, Net, Running, output};
use super::until;
use crate::{Datapath, Failure};

pub(super) const VIP: &str = "192.0.2.10";
pub(super) const SERVER: &str = "10.0.0.2";
pub(super) const VIP_V6: &str = "2001:db8:2::10";
pub(super) const SERVER_V6: &str = "fd00:a::2";
pub(super) const CLIENT_MAC: &str = "02:00:00:00:00:c0";
pub(super) const D0_MAC: &str = "02:00:00:00:00:d0";
pub(super) const D1_MAC: &str = "02:00:00:00:00:d1";
/// Nobody's address: what the sink receives is counted and goes no further.
pub(super) const NOBODY: &str = "02:00:00:00:00:99";

pub(super) struct Lab {
    pub(super) client: Net,
    pub(super) director: Net,
    pub(super) server: Net,
    pub(super) directory: Directory,
}

impl Lab {
    pub(super) fn new() -> Result<Lab, Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root (network namespaces, BPF)".into());
        }
        let lab = Lab {
            client: Net::new()?,
            director: Net::new()?,
            server: Net::new()?,
            directory: Directory::new()?,
        };
        let there = lab.director.pid();
        lab.client.ip(&format!(
            "link add c0 address {CLIENT_MAC} type veth peer name d0 address {D0_MAC} netns {there}
             addr add 198.51.100.10/24 dev c0
             addr add 2001:db8:1::10/64 dev c0 nodad
             link set c0 up"
        ))?;
        lab.server.ip(&format!(
            "link add s0 type veth peer name d1 address {D1_MAC} netns {there}
             addr add {SERVER}/24 dev s0
             addr add {SERVER_V6}/64 dev s0 nodad
             link set s0 up"
        ))?;
        lab.director.ip(&format!(
            "addr add 198.51.100.1/24 dev d0
             addr add 10.0.0.1/24 dev d1
             addr add {VIP}/32 dev lo
             addr add 2001:db8:1::1/64 dev d0 nodad
             addr add fd00:a::1/64 dev d1 nodad
             addr add {VIP_V6}/128 dev lo
             link set d0 up
             link set d1 up"
        ))?;
        lab.client.ip("route add default via 198.51.100.1\nroute add default via 2001:db8:1::1")?;
        lab.server.ip("route add default via 10.0.0.1\nroute add default via fd00:a::1")?;
        lab.director.set("net.ipv4.ip_forward", "1")?;
        lab.director.set("net.ipv6.conf.all.forwarding", "1")?;
        for (net, dev) in
            [(&lab.client, "c0"), (&lab.director, "d0"), (&lab.director, "d1"), (&lab.server, "s0")]
        {
            let line = format!("ip -o link show dev {dev}");
            until("a carrier", || Ok(net.run(&line)?.contains("state UP").then_some(())))?;
        }
        Ok(lab)
    }

    /// Prepares for generated frames from 198.18.0.0/15 and 2001:2::/48, which end at the sink's interface.
    pub(super) fn for_frames() -> Result<Lab, Failure> {
        let lab = Lab::new()?;
        // frames that XDP redirects to a veth are taken only where NAPI is on
        lab.director.run("ethtool -K d0 gro on")?;
        lab.director.ip(&format!(
            "neigh replace {SERVER} lladdr {NOBODY} dev d1 nud permanent
             neigh replace 198.51.100.10 lladdr {CLIENT_MAC} dev d0 nud permanent
             route add 198.18.0.0/15 via 198.51.100.10
             neigh replace {SERVER_V6} lladdr {NOBODY} dev d1 nud permanent
             neigh replace 2001:db8:1::10 lladdr {CLIENT_MAC} dev d0 nud permanent
             route add 2001:2::/48 via 2001:db8:1::10"
        ))?;
        Ok(lab)
    }

    /// Has the server's interface take frames that XDP redirects, and drop them there and then, for as long as what is answered lives.
    pub(super) fn sink(&self) -> Result<Running, Failure> {
        let bench = sibling("lvsd-bench")?;
        let mut c = self.server.command(&bench);
        c.args(["sink", "--interface", "s0", "--seconds", "3600"]);
        let mut sink = Running::start(&mut c, "sink", &self.directory)?;
        until("the program of the sink", || {
            sink.must_run()?;
            Ok(self.server.run("ip -d link show dev s0")?.contains("prog/xdp").then_some(()))
        })?;
        Ok(sink)
    }

    /// Gives the receiving side of `d0` a kernel thread on a processor (threaded NAPI), so that kernel forwarders, too, have
    /// one to themselves. Otherwise they work in the soft interrupt of whoever sends, and share the processor with it.
    pub(super) fn receive_on(&self, cpu: usize) -> Result<(), Failure> {
        let before = napi_threads()?;
        // the mount shows this namespace's interfaces, and is gone with the shell
        let script = "mount -t sysfs sysfs /sys && echo 1 > /sys/class/net/d0/threaded";
        output(self.director.command("unshare").args(["--mount", "sh", "-c", script]))?;
        let thread = until("the kernel's thread for d0", || {
            let now = napi_threads()?;
            let mut new = now.difference(&before);
            Ok(match (new.next(), new.next()) {
                (Some(one), None) => Some(*one),
                _ => None,
            })
        })?;
        let mut set = CpuSet::new();
        set.set(cpu);
        let thread = Pid::from_raw(thread);
        sched_setaffinity(thread, &set)?;
        // as high a priority as the daemon's, which inherits ours
        setpriority_process(thread, getpriority_process(None)?)?;
        Ok(())
    }

    /// An error if a program is attached to one of the director's interfaces, or a rule of nftables is left.
    pub(super) fn nothing_attached(&self) -> Result<(), Failure> {
        self.director.run(&format!("{} attached --interface d0 --interface d1", sibling("lvsd-bench")?))?;
        let rules = self.director.run("nft list ruleset")?;
        if rules.trim().is_empty() { Ok(()) } else { Err("rules of nftables are left behind".into()) }
    }

    /// The offloads that are on at each interface.
    pub(super) fn offloads(&self) -> Result<Value, Failure> {
        let of = |net: &Net, dev: &str| -> Result<Value, Failure> {
            let text = net.run(&format!("ethtool -k {dev}"))?;
            let on = |name: &str| text.lines().any(|l| l.starts_with(&format!("{name}: on")));
            let names = [
                "rx-checksumming",
                "tx-checksumming",
                "scatter-gather",
                "tcp-segmentation-offload",
                "generic-segmentation-offload",
                "generic-receive-offload",
            ];
            Ok(names.into_iter().filter(|n| on(n)).collect())
        };
        Ok(json!({
            "c0": of(&self.client, "c0")?, "d0": of(&self.director, "d0")?,
            "d1": of(&self.director, "d1")?, "s0": of(&self.server, "s0")?,
        }))
    }

    /// A command for the generator, on its processor: UDP frames to `to`.
    pub(super) fn generator(&self, to: &str, traffic: &Traffic) -> Result<Command, Failure> {
        let (cpu, _) = processors()?;
        // at normal priority: the kernel's thread for soft interrupts, which may forward, has to share this processor with it
        let normal = (-getpriority_process(None)?).max(0);
        let mut c = self.client.command_on(cpu, "nice");
        c.args(["-n", &normal.to_string(), &sibling("lvsd-bench")?]);
        c.args(["generate", "--interface", "c0", "--dst-mac", D0_MAC, "--src-mac", CLIENT_MAC]);
        c.args(["--dst", to, "--port", &traffic.port.to_string(), "--flows", &traffic.flows.to_string()]);
        c.args(["--size", &traffic.bytes.to_string()]);
        Ok(c)
    }
}

/// The kernel's threads for interfaces named `d0`, in whatever namespace.
fn napi_threads() -> Result<HashSet<i32>, Failure> {
    let mut found = HashSet::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        // it may have ended since
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.starts_with("napi/d0-") {
            found.insert(pid);
        }
    }
    Ok(found)
}

/// A program that was built beside this one.
pub(super) fn sibling(name: &str) -> Result<String, Failure> {
    let path: PathBuf = std::env::current_exe()?.with_file_name(name);
    if !path.exists() {
        return Err(format!("{}: not built; bench/run builds it", path.display()).into());
    }
    Ok(path.to_str().ok_or("a path that is not UTF-8")?.to_owned())
}

/// How the daemon is to serve.
pub(super) struct Serve {
    pub(super) datapath: Datapath,
    /// The one processor that it may use.
    pub(super) cpu: Option<usize>,
    pub(super) workers: Option<u32>,
    /// Limit of connections.
    pub(super) connections: Option<u32>,
    /// `-t` or `-u`, and the port.
    pub(super) service: (&'static str, u16),
    pub(super) method: Method,
    pub(super) v6: bool,
}

/// How packets get to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Method {
    Nat,
    Dr,
    /// In a packet of the same family.
    Ipip,
}

impl Method {
    pub(super) fn name(self) -> &'static str {
        match self {
            Method::Nat => "nat",
            Method::Dr => "dr",
            Method::Ipip => "ipip",
        }
    }

    /// What `lvsctl -a` calls it.
    fn option(self) -> &'static str {
        match self {
            Method::Nat => "-m",
            Method::Dr => "-g",
            Method::Ipip => "-i",
        }
    }
}

impl Serve {
    /// With the daemon's defaults.
    pub(super) fn by(datapath: Datapath, service: (&'static str, u16)) -> Serve {
        let (method, v6) = (Method::Nat, false);
        Serve { datapath, cpu: None, workers: None, connections: None, service, method, v6 }
    }
}

/// The daemon on `d0` and `d1`.
pub(super) struct Lvsd {
    pub(super) process: Running,
    socket: PathBuf,
}

impl Lvsd {
    /// Starts it with one service at [`VIP`], which leads to the same port of the server.
    pub(super) fn start(lab: &Lab, serve: &Serve) -> Result<Lvsd, Failure> {
        let (protocol, port) = serve.service;
        let socket = lab.directory.join("lvsd.sock");
        let state = lab.directory.join("lvsd.state");
        if state.exists() {
            std::fs::remove_file(&state)?;
        }
        let mut command = lab.director.command_on(serve.cpu, &sibling("lvsd")?);
        command.arg("--socket").arg(&socket).arg("--state-file").arg(&state);
        // what is pinned would outlive a daemon that an error ends
        command.args(["--pin-dir", "none"]);
        command.args(["--datapath", &serve.datapath.to_string(), "--interface", "d0", "--interface", "d1"]);
        let v6 = serve.connections.filter(|_| serve.v6);
        for (option, n) in [
            ("--workers", serve.workers),
            ("--max-connections", serve.connections),
            ("--max-connections-ipv6", v6),
        ] {
            if let Some(n) = n {
                command.args([option, &n.to_string()]);
            }
        }
        let process = Running::start(&mut command, "lvsd", &lab.directory)?;
        let mut lvsd = Lvsd { process, socket };
        until("lvsd on its socket", || {
            lvsd.process.must_run()?;
            Ok(lvsd.ctl("-L -n").ok())
        })?;
        let (vip, server) = if serve.v6 {
            (format!("[{VIP_V6}]:{port}"), format!("[{SERVER_V6}]:{port}"))
        } else {
            (format!("{VIP}:{port}"), format!("{SERVER}:{port}"))
        };
        lvsd.ctl(&format!("-A {protocol} {vip} -s rr"))?;
        lvsd.ctl(&format!("-a {protocol} {vip} -r {server} {}", serve.method.option()))?;
        Ok(lvsd)
    }

    /// Runs `lvsctl` with these words; what it says.
    pub(super) fn ctl(&self, line: &str) -> Result<String, Failure> {
        let mut c = Command::new(sibling("lvsctl")?);
        output(c.arg("--socket").arg(&self.socket).args(line.split_whitespace()))
    }

    /// The counters of `lvsctl status`.
    pub(super) fn counters(&self) -> Result<Vec<(String, u64)>, Failure> {
        let text = self.ctl("status")?;
        let one = |line: &str| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        };
        Ok(text.lines().filter_map(one).collect())
    }

    /// One of them.
    pub(super) fn counter(&self, name: &str) -> Result<u64, Failure> {
        let found = self.counters()?.into_iter().find(|(n, _)| n == name);
        Ok(found.ok_or_else(|| format!("lvsctl status does not show {name}"))?.1)
    }
}

/// Whether the daemon that was built can serve by these rings.
pub(crate) fn is_there(datapath: Datapath) -> Result<bool, Failure> {
    let mut c = Command::new(sibling("lvsd")?);
    // the kind of rings is looked at first; then this ends in any case, for want of the interface
    c.args(["--control-only", "--datapath", &datapath.to_string(), "--interface", "no-such-device0"]);
    let out = c.args(["--socket", "/nonexistent/lvsd.sock"]).output()?;
    Ok(!String::from_utf8_lossy(&out.stderr).contains("not available in this version"))
}

/// The processors that the generator and the director have to themselves; none where there is but one.
pub(super) fn processors() -> Result<(Option<usize>, Option<usize>), Failure> {
    let set = rustix::thread::sched_getaffinity(None)?;
    let mut usable = (0..CpuSet::MAX_CPU).filter(|c| set.is_set(*c));
    match (usable.next(), usable.next()) {
        (Some(a), Some(b)) => Ok((Some(a), Some(b))),
        _ => Ok((None, None)),
    }
}
