//! The director under test: the daemon with its control tool, and for the harness's own tests nftables in its place.
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::netns::{Netns, Proc, TempDir};
use crate::probe;
use crate::wait::{secs, until, within};

/// What `lvsctl -L -n` says of one server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ServerRow {
    pub(crate) address: SocketAddr,
    pub(crate) forward: String,
    pub(crate) weight: u32,
    pub(crate) active: u32,
    pub(crate) inactive: u32,
}

/// What `lvsctl -L -n -c` says of one connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ConnRow {
    pub(crate) protocol: String,
    /// Until it expires, seconds.
    pub(crate) expire: u32,
    pub(crate) state: String,
    pub(crate) source: SocketAddr,
    pub(crate) virt: SocketAddr,
    pub(crate) destination: SocketAddr,
}

/// A running daemon.
pub(crate) struct Lvsd {
    process: Proc,
    socket: PathBuf,
    state: PathBuf,
}

impl Lvsd {
    /// Starts it in `ns` on `devs`, for at most `limit` connections, with more arguments, and waits until it answers. A data path among
    /// them stands in the place of that which is under test.
    #[track_caller]
    pub(crate) fn start(ns: &Netns, devs: &[&str], dir: &TempDir, limit: u32, more: &[&str]) -> Lvsd {
        let (socket, state) = (dir.join("lvsd.sock"), dir.join("lvsd.state"));
        let mut command = ns.command(probe::lvsd());
        if more.contains(&"--datapath") {
            lvsd_arguments_but_datapath(&mut command, &socket, &state, devs, limit);
        } else {
            lvsd_arguments(&mut command, &socket, &state, devs, limit);
        }
        command.args(more);
        let process = Proc::start(&mut command, dir.join("lvsd.log"));
        let mut lvsd = Lvsd { process, socket, state };
        until("lvsd answers on its socket", secs(20), || {
            if let Some(status) = lvsd.process.ended() {
                panic!("lvsd ended: {status}\n{}", lvsd.process.output());
            }
            lvsd.ctl("-L -n").status.success().then_some(())
        });
        lvsd
    }

    /// Where its state file is.
    pub(crate) fn state_file(&self) -> &Path {
        &self.state
    }

    /// Its control socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// Sends SIGTERM and waits for the end, which must be a good one.
    #[track_caller]
    pub(crate) fn terminate(mut self) {
        self.process.signal(rustix::process::Signal::TERM);
        let status = until("lvsd ends after SIGTERM", secs(10), || self.process.ended());
        assert!(status.success(), "lvsd ended with {status}\n{}", self.process.output());
    }

    /// Kills it with SIGKILL and waits for the end.
    pub(crate) fn kill(mut self) {
        self.process.signal(rustix::process::Signal::KILL);
        until("lvsd ends after SIGKILL", secs(30), || self.process.ended());
    }

    /// Runs `lvsctl` with the words of `line`.
    pub(crate) fn ctl(&self, line: &str) -> Output {
        ctl(&self.socket, line)
    }

    /// As [`Lvsd::ctl`], which must succeed without a word on standard error; returns standard output.
    #[track_caller]
    pub(crate) fn ctl_ok(&self, line: &str) -> String {
        let out = self.ctl(line);
        let errors = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success() && errors.is_empty(), "lvsctl {line}: {}\n{errors}", out.status);
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// The servers of a service, `selector` as in `-t 192.0.2.10:80`, in the order of the listing.
    #[track_caller]
    pub(crate) fn servers(&self, selector: &str) -> Vec<ServerRow> {
        let text = self.ctl_ok(&format!("-L -n {selector}"));
        parse_servers(&text).unwrap_or_else(|| panic!("not a listing of servers:\n{text}"))
    }

    /// The row of one server of a service.
    #[track_caller]
    pub(crate) fn server(&self, selector: &str, address: SocketAddr) -> ServerRow {
        let rows = self.servers(selector);
        let row = rows.iter().find(|r| r.address == address);
        row.unwrap_or_else(|| panic!("no server {address} in {rows:?}")).clone()
    }

    /// Connections that a server of a service has got since its statistics were zeroed.
    #[track_caller]
    pub(crate) fn connections_ever(&self, selector: &str, address: SocketAddr) -> u64 {
        let text = self.ctl_ok(&format!("-L -n --stats --exact {selector}"));
        let wanted = address.to_string();
        let found = text.lines().find_map(|l| {
            let mut f = l.split_whitespace();
            (f.next() == Some("->") && f.next() == Some(&wanted)).then(|| f.next()?.parse().ok()).flatten()
        });
        found.unwrap_or_else(|| panic!("no statistics of {address} in\n{text}"))
    }

    /// A counter of `lvsctl status`.
    #[track_caller]
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let text = self.ctl_ok("status");
        let found = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or_else(|| panic!("no counter {name} in\n{text}"))
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        self.process.output()
    }

    /// The connection table.
    #[track_caller]
    pub(crate) fn connections(&self) -> Vec<ConnRow> {
        let text = self.ctl_ok("-L -n -c");
        parse_connections(&text).unwrap_or_else(|| panic!("not a listing of connections:\n{text}"))
    }

    /// The entry of the connection that a client's socket address names, if there is one.
    #[track_caller]
    pub(crate) fn connection_of(&self, client: SocketAddr) -> Option<ConnRow> {
        let mut all: Vec<ConnRow> = self.connections().into_iter().filter(|c| c.source == client).collect();
        assert!(all.len() <= 1, "more than one entry for {client}: {all:?}");
        all.pop()
    }

    /// All that helps to understand a failure.
    pub(crate) fn print_all(&self, ns: &Netns) {
        for line in ["-L -n", "-L -n -c", "-L -n --stats", "status --nonzero"] {
            let out = self.ctl(line);
            let text = [out.stdout, out.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            println!("--- lvsctl {line}: {}\n{}", out.status, head(&text.lines().collect::<Vec<_>>()));
        }
        for line in ["ip neigh", "ip -s link", "ip addr", "ip route", "ip -6 route"] {
            println!("--- {line}, director\n{}", String::from_utf8_lossy(&ns.try_sh(line).stdout));
        }
        println!("--- lvsd's log\n{}", head(&self.process.output().lines().collect::<Vec<_>>()));
    }
}

/// The first lines of a long text.
fn head(lines: &[&str]) -> String {
    match lines.len() {
        n if n > 120 => format!("{}\n… and {} lines more", lines[..120].join("\n"), n - 120),
        _ => lines.join("\n"),
    }
}

/// The data path under test: what `LVSD_DATAPATH` says (`afpacket`, `afxdp`, `afxdp-generic`, `tc`, `xdp`), else AF_PACKET rings.
pub(crate) fn datapath_arguments() -> Vec<String> {
    let chosen = std::env::var("LVSD_DATAPATH").unwrap_or_else(|_| "afpacket".into());
    let words = match chosen.split_once('-') {
        None => vec!["--datapath", &chosen],
        Some((kind, mode)) => vec!["--datapath", kind, "--xdp-mode", mode],
    };
    words.into_iter().map(str::to_owned).collect()
}

/// Whether known connections are forwarded in the kernel.
pub(crate) fn has_tier() -> bool {
    datapath_arguments().iter().any(|word| word == "tc" || word == "xdp")
}

/// Whether that is at XDP.
pub(crate) fn has_xdp_tier() -> bool {
    datapath_arguments().iter().any(|word| word == "xdp")
}

/// Whether the director cuts super-packets anew, so that senders are not told what fits: XDP in the stack does not know their segments.
pub(crate) fn cuts_anew() -> bool {
    datapath_arguments().iter().any(|word| word == "generic")
}

/// Whether a packet socket in the director sees the frames that are taken: XDP comes before it.
pub(crate) fn taps_see_what_is_ours() -> bool {
    datapath_arguments().iter().all(|word| word != "afxdp" && word != "xdp")
}

/// The daemon's arguments.
pub(crate) fn lvsd_arguments(command: &mut Command, socket: &Path, state: &Path, devs: &[&str], limit: u32) {
    command.args(datapath_arguments());
    lvsd_arguments_but_datapath(command, socket, state, devs, limit);
}

/// The daemon's arguments without that for the data path.
pub(crate) fn lvsd_arguments_but_datapath(
    command: &mut Command,
    socket: &Path,
    state: &Path,
    devs: &[&str],
    limit: u32,
) {
    command.arg("--socket").arg(socket).arg("--state-file").arg(state);
    for d in devs {
        command.args(["--interface", d]);
    }
    command.arg("--max-connections").arg(limit.to_string());
}

/// Runs `lvsctl --socket SOCKET` with the words of `line`.
pub(crate) fn ctl(socket: &Path, line: &str) -> Output {
    Command::new(probe::lvsctl())
        .arg("--socket")
        .arg(socket)
        .args(line.split_whitespace())
        .stdin(std::process::Stdio::null())
        .output()
        .expect("lvsctl starts")
}

/// Reads the `  -> address forward weight active inactive` lines of a listing.
pub(crate) fn parse_servers(text: &str) -> Option<Vec<ServerRow>> {
    let rows = text.lines().filter(|l| l.starts_with("  -> ") && !l.contains("RemoteAddress"));
    rows.map(|line| {
        let f: Vec<&str> = line.split_whitespace().collect();
        let [_, address, forward, weight, active, inactive] = f[..] else { return None };
        Some(ServerRow {
            address: address.parse().ok()?,
            forward: forward.to_string(),
            weight: weight.parse().ok()?,
            active: active.parse().ok()?,
            inactive: inactive.parse().ok()?,
        })
    })
    .collect()
}

/// Reads the lines of `-L -n -c` behind its two header lines.
pub(crate) fn parse_connections(text: &str) -> Option<Vec<ConnRow>> {
    text.lines()
        .skip(2)
        .map(|line| {
            let f: Vec<&str> = line.split_whitespace().collect();
            let [protocol, expire, state, source, virt, destination] = f[..] else { return None };
            let (minutes, seconds) = expire.split_once(':')?;
            Some(ConnRow {
                protocol: protocol.to_string(),
                expire: minutes.parse::<u32>().ok()? * 60 + seconds.parse::<u32>().ok()?,
                state: state.to_string(),
                source: source.parse().ok()?,
                virt: virt.parse().ok()?,
                destination: destination.parse().ok()?,
            })
        })
        .collect()
}

/// Waits until the sums of active and inactive connections of a service are as given.
#[track_caller]
pub(crate) fn until_counts(lvsd: &Lvsd, selector: &str, active: u32, inactive: u32, limit: Duration) {
    let sums = || {
        let rows = lvsd.servers(selector);
        (rows.iter().map(|r| r.active).sum::<u32>(), rows.iter().map(|r| r.inactive).sum::<u32>())
    };
    let reached = within(limit, || (sums() == (active, inactive)).then_some(()));
    assert!(reached.is_some(), "{selector}: active/inactive {:?}, not ({active}, {inactive})", sums());
}

/// nftables doing DNAT; its table is deleted on drop.
pub(crate) struct Nft {
    ns_name: String,
}

impl Nft {
    /// New connections to `vip`:`port` go to `servers` in turn.
    pub(crate) fn start(ns: &Netns, vip: IpAddr, port: u16, protocol: &str, servers: &[IpAddr]) -> Nft {
        let family = if vip.is_ipv4() { "ip" } else { "ip6" };
        let map: Vec<String> = servers.iter().enumerate().map(|(i, s)| format!("{i} : {s}")).collect();
        let rules = format!(
            "table {family} lvst {{\n chain pre {{\n type nat hook prerouting priority -100;\n {family} daddr {vip} \
             {protocol} dport {port} dnat to numgen inc mod {} map {{ {} }}\n }}\n}}\n",
            servers.len(),
            map.join(", ")
        );
        // nft takes rules with newlines as one argument.
        crate::netns::run(ns.command("nft").arg(rules));
        Nft { ns_name: ns.name().to_string() }
    }
}

impl Drop for Nft {
    fn drop(&mut self) {
        for family in ["ip", "ip6"] {
            let _ = Command::new("ip")
                .args(["netns", "exec", &self.ns_name, "nft", "delete", "table", family, "lvst"])
                .stderr(std::process::Stdio::null())
                .status();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_read() {
        let text = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> \
                    RemoteAddress:Port           Forward Weight ActiveConn InActConn\nTCP  192.0.2.10:80 rr\n  -> \
                    10.0.0.11:80                 Masq    1      3          0         \n";
        let rows = parse_servers(text).expect("a listing");
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].weight, rows[0].active, rows[0].inactive), (1, 3, 0));
        let text = "IPVS connection entries\npro expire state       source             virtual            \
                    destination\nTCP 14:59  ESTABLISHED [2001:db8:c::10]:40000 [2001:db8:0:1::10]:80 \
                    [2001:db8:a::11]:80\n";
        let rows = parse_connections(text).expect("a listing");
        assert_eq!((rows[0].expire, rows[0].state.as_str()), (899, "ESTABLISHED"));
        assert_eq!(parse_connections("a\nb\nnonsense\n"), None);
    }
}
