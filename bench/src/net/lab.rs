//! The one topology: client and server, each in a namespace of its own, and the director between them.
//!
//! ```text
//! client  c0 198.51.100.10 ── d0 198.51.100.1  director  d1 10.0.0.1 ── s0 10.0.0.2  server
//!                                  VIP 192.0.2.10
//! ```
//! veth pairs with their default offloads and one queue; the director forwards (`ip_forward`).

use std::path::PathBuf;
use std::process::Command;

use super::process::{Directory, Net, Running, output};
use super::until;
use crate::Failure;

pub(super) const VIP: &str = "192.0.2.10";
pub(super) const SERVER: &str = "10.0.0.2";
pub(super) const CLIENT_MAC: &str = "02:00:00:00:00:c0";
pub(super) const D0_MAC: &str = "02:00:00:00:00:d0";
pub(super) const D1_MAC: &str = "02:00:00:00:00:d1";

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
             link set c0 up"
        ))?;
        lab.server.ip(&format!(
            "link add s0 type veth peer name d1 address {D1_MAC} netns {there}
             addr add {SERVER}/24 dev s0
             link set s0 up"
        ))?;
        lab.director.ip(&format!(
            "addr add 198.51.100.1/24 dev d0
             addr add 10.0.0.1/24 dev d1
             addr add {VIP}/32 dev lo
             link set d0 up
             link set d1 up"
        ))?;
        lab.client.ip("route add default via 198.51.100.1")?;
        lab.server.ip("route add default via 10.0.0.1")?;
        lab.director.set("net.ipv4.ip_forward", "1")?;
        for (net, dev) in
            [(&lab.client, "c0"), (&lab.director, "d0"), (&lab.director, "d1"), (&lab.server, "s0")]
        {
            let line = format!("ip -o link show dev {dev}");
            until("a carrier", || Ok(net.run(&line)?.contains("state UP").then_some(())))?;
        }
        Ok(lab)
    }
}

/// A program that was built beside this one.
pub(super) fn sibling(name: &str) -> Result<String, Failure> {
    let path: PathBuf = std::env::current_exe()?.with_file_name(name);
    if !path.exists() {
        return Err(format!("{}: not built; bench/run builds it", path.display()).into());
    }
    Ok(path.to_str().ok_or("a path that is not UTF-8")?.to_owned())
}

/// The daemon on `d0` and `d1`, rings only.
pub(super) struct Lvsd {
    pub(super) process: Running,
    socket: PathBuf,
}

impl Lvsd {
    /// Starts it with the service `protocol` (`-t` or `-u`) VIP:`port`, which NAT leads to the same port of the server.
    pub(super) fn start(
        lab: &Lab,
        cpu: Option<usize>,
        workers: Option<u32>,
        (protocol, port): (&str, u16),
    ) -> Result<Lvsd, Failure> {
        let socket = lab.directory.join("lvsd.sock");
        let state = lab.directory.join("lvsd.state");
        if state.exists() {
            std::fs::remove_file(&state)?;
        }
        let mut command = lab.director.command_on(cpu, &sibling("lvsd")?);
        command.arg("--socket").arg(&socket).arg("--state-file").arg(&state);
        command.args(["--datapath", "afpacket", "--interface", "d0", "--interface", "d1"]);
        if let Some(n) = workers {
            command.args(["--workers", &n.to_string()]);
        }
        let process = Running::start(&mut command, "lvsd", &lab.directory)?;
        let mut lvsd = Lvsd { process, socket };
        until("lvsd on its socket", || {
            lvsd.process.must_run()?;
            Ok(lvsd.ctl("-L -n").ok())
        })?;
        lvsd.ctl(&format!("-A {protocol} {VIP}:{port} -s rr"))?;
        lvsd.ctl(&format!("-a {protocol} {VIP}:{port} -r {SERVER}:{port} -m"))?;
        Ok(lvsd)
    }

    /// Runs `lvsctl` with these words; what it says.
    pub(super) fn ctl(&self, line: &str) -> Result<String, Failure> {
        let mut c = Command::new(sibling("lvsctl")?);
        output(c.arg("--socket").arg(&self.socket).args(line.split_whitespace()))
    }
}

/// The processors that the generator and the director have to themselves; none where there is but one.
pub(super) fn processors() -> Result<(Option<usize>, Option<usize>), Failure> {
    let set = rustix::thread::sched_getaffinity(None)?;
    let mut usable = (0..rustix::thread::CpuSet::MAX_CPU).filter(|c| set.is_set(*c));
    match (usable.next(), usable.next()) {
        (Some(a), Some(b)) => Ok((Some(a), Some(b))),
        _ => Ok((None, None)),
    }
}
