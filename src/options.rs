//! The daemon's command line.

use std::fmt;
use std::num::NonZeroU16;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use lvsd::datapath::{Pins, Rings};
use lvsd::engine::MAX_WORKERS;
use lvsd::io::afxdp::Attach;
use rustix::net::netdevice::name_to_index;
use rustix::thread::{CapabilitySet, capabilities};

/// Default of `--socket`.
const SOCKET: &str = "/run/lvsd.sock";
/// Default of `--state-file`.
const STATE_FILE: &str = "/var/lib/lvsd/state";

/// A user-space Linux Virtual Server director.
#[derive(Parser, Debug)]
#[command(name = "lvsd", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Forwards the packets of a capture into another, by a configuration
    Replay(Replay),
    /// Has the running lvsd start its program's file anew and hand over to it, without a gap
    Upgrade(Upgrade),
}

#[derive(Args, Debug)]
pub(crate) struct Upgrade {
    /// Control socket of the running lvsd
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pub(crate) socket: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Replay {
    /// Configuration: a state file's lines, and those of the network (see lvsd(8))
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Capture to read
    #[arg(long = "in", value_name = "IN.pcap")]
    pub(crate) input: PathBuf,
    /// Capture to write
    #[arg(long = "out", value_name = "OUT.pcap")]
    pub(crate) output: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Control socket, for lvsctl
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pub(crate) socket: PathBuf,
    /// Lets the members of a group administer by the control socket (name or number)
    #[arg(long, value_name = "GROUP")]
    pub(crate) socket_group: Option<String>,
    /// Where the configuration is kept [default: /var/lib/lvsd/state, with --control-only none]
    #[arg(long, value_name = "PATH")]
    state_file: Option<PathBuf>,
    /// How packets are received and sent
    #[arg(long, value_enum, value_name = "KIND", default_value_t = DatapathKind::Auto)]
    pub(crate) datapath: DatapathKind,
    /// Where the XDP program of --datapath afxdp or xdp runs; xdp forwards in the driver only
    #[arg(long, value_enum, value_name = "MODE", default_value_t = XdpMode::Auto)]
    pub(crate) xdp_mode: XdpMode,
    /// Microseconds that a worker of --datapath afxdp or xdp polls busily after a frame, 1 to 1000000 [default: not at all]
    #[arg(long, value_name = "USECS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) busy_poll: Option<u32>,
    /// An interface to serve on (may be repeated) [default: every Ethernet interface that is up and no port of a bridge or bond]
    #[arg(long = "interface", value_name = "IF")]
    pub(crate) interfaces: Vec<String>,
    /// Where the data plane of --datapath xdp and tc is pinned, so that it goes on without lvsd; none: it ends with it [default: a
    /// directory below /sys/fs/bpf/lvsd that is named after the socket]
    #[arg(long, value_name = "DIR")]
    pin_dir: Option<PathBuf>,
    /// IPv4 connections that the table holds
    #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = connections)]
    pub(crate) max_connections: u32,
    /// IPv6 connections that the table holds [default: an eighth of --max-connections, at least 1024]
    #[arg(long, value_name = "N", value_parser = connections)]
    max_connections_ipv6: Option<u32>,
    /// Threads that forward packets, 1 to 64 [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = workers)]
    pub(crate) workers: Option<NonZeroU16>,
    /// Serves the control socket only: no packets, no privilege; of --interface it is only looked whether it is there
    #[arg(long)]
    pub(crate) control_only: bool,
}

/// Largest `--max-connections`: 2^26 entries of 64 bytes fill the largest table that the kernel maps, 4 GiB.
const MAX_CONNECTIONS: u32 = 1 << 26;

fn connections(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(n) if (1..=MAX_CONNECTIONS).contains(&n) => Ok(n),
        _ => Err(format!("not a whole number from 1 to {MAX_CONNECTIONS} (digits only, no unit)")),
    }
}

fn workers(text: &str) -> Result<NonZeroU16, String> {
    match text.parse::<NonZeroU16>() {
        Ok(n) if usize::from(n.get()) <= MAX_WORKERS => Ok(n),
        _ => Err(format!("not a number from 1 to {MAX_WORKERS}")),
    }
}

/// How packets are received and sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum DatapathKind {
    /// The best that works
    Auto,
    /// Known connections forwarded in the kernel at XDP, the rest by AF_XDP rings
    Xdp,
    /// Known connections forwarded in the kernel at tc ingress, the rest by AF_PACKET rings
    Tc,
    /// AF_XDP rings only
    Afxdp,
    /// AF_PACKET rings only
    Afpacket,
    /// Netfilter queue
    Nfqueue,
}

/// Where an XDP program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum XdpMode {
    /// In the driver, or where that has no XDP, in the stack
    Auto,
    /// In the driver
    Native,
    /// In the stack
    Generic,
}

impl fmt::Display for DatapathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("?", |v| v.get_name()))
    }
}

/// Why the daemon can't start with these options here.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum OptionsError {
    #[error("--datapath {0}: not available in this version; use auto, xdp, tc, afxdp or afpacket")]
    Datapath(DatapathKind),
    #[error("{0} is for --datapath afxdp or xdp; it is {1}")]
    OnlyXdp(&'static str, DatapathKind),
    #[error(
        "--xdp-mode generic: --datapath xdp forwards where XDP runs in the driver only; use --datapath tc, or afxdp without the tier"
    )]
    GenericTier,
    #[error("--interface {0}: no such interface in this network namespace; 'ip link' lists them")]
    NoInterface(String),
    #[error("--interface {0}: given twice")]
    Twice(String),
    #[error(
        "missing {0}: run lvsd as root, or give it these capabilities (AmbientCapabilities= in its unit, or setcap), or use --control-only"
    )]
    Capabilities(String),
    #[error("can't look at interfaces: {0}")]
    Look(String),
}

impl OptionsError {
    /// Whether the command line is at fault, whatever the machine.
    pub(crate) fn is_usage(&self) -> bool {
        match self {
            OptionsError::Datapath(_)
            | OptionsError::OnlyXdp(..)
            | OptionsError::GenericTier
            | OptionsError::Twice(_) => true,
            OptionsError::NoInterface(_) | OptionsError::Capabilities(_) | OptionsError::Look(_) => false,
        }
    }
}

impl Options {
    /// The state file in effect.
    pub(crate) fn state_file(&self) -> Option<&Path> {
        match &self.state_file {
            Some(path) => Some(path),
            None if self.control_only => None,
            None => Some(Path::new(STATE_FILE)),
        }
    }

    /// The limit of IPv6 connections in effect.
    pub(crate) fn max_connections_ipv6(&self) -> u32 {
        self.max_connections_ipv6.unwrap_or((self.max_connections / 8).max(1024))
    }

    /// Where the data plane is pinned.
    pub(crate) fn pins(&self) -> Pins {
        match &self.pin_dir {
            None => Pins::Try(pinned::default_dir(&self.socket)),
            Some(dir) if dir == Path::new("none") => Pins::Nowhere,
            Some(dir) => Pins::At(dir.clone()),
        }
    }

    /// The rings that are asked for.
    pub(crate) fn rings(&self) -> Rings {
        let attach = match self.xdp_mode {
            XdpMode::Auto => Attach::Auto,
            XdpMode::Native => Attach::Native,
            XdpMode::Generic => Attach::Generic,
        };
        match self.datapath {
            DatapathKind::Afpacket => Rings::AfPacket,
            DatapathKind::Tc => Rings::Tc,
            DatapathKind::Xdp => Rings::Xdp { attach, busy_poll: self.busy_poll.unwrap_or(0) },
            DatapathKind::Afxdp => Rings::AfXdp { attach, busy_poll: self.busy_poll.unwrap_or(0) },
            _ => Rings::Auto,
        }
    }

    /// What can be known before anything is changed.
    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        if self.datapath == DatapathKind::Nfqueue {
            return Err(OptionsError::Datapath(self.datapath));
        }
        for (option, given) in
            [("--xdp-mode", self.xdp_mode != XdpMode::Auto), ("--busy-poll", self.busy_poll.is_some())]
        {
            if given && !matches!(self.datapath, DatapathKind::Afxdp | DatapathKind::Xdp) {
                return Err(OptionsError::OnlyXdp(option, self.datapath));
            }
        }
        if self.datapath == DatapathKind::Xdp && self.xdp_mode == XdpMode::Generic {
            return Err(OptionsError::GenericTier);
        }
        self.check_interfaces()?;
        if self.control_only {
            return Ok(());
        }
        // A kernel that does not answer knows no capabilities to lack.
        let have = capabilities(None).map_or(CapabilitySet::all(), |c| c.effective);
        match missing(have) {
            m if m.is_empty() => Ok(()),
            m => Err(OptionsError::Capabilities(m.join(", "))),
        }
    }

    fn check_interfaces(&self) -> Result<(), OptionsError> {
        if self.interfaces.is_empty() {
            return Ok(());
        }
        // A socket of any kind serves to ask by.
        let socket = UnixDatagram::unbound().map_err(|e| OptionsError::Look(e.to_string()))?;
        for (i, name) in self.interfaces.iter().enumerate() {
            if self.interfaces.iter().take(i).any(|n| n == name) {
                return Err(OptionsError::Twice(name.clone()));
            }
            // The kernel cuts names at 15 bytes.
            if name.len() > 15 || name_to_index(&socket, name).is_err() {
                return Err(OptionsError::NoInterface(name.clone()));
            }
        }
        Ok(())
    }
}

/// The capabilities that the data path needs and that are not there.
fn missing(have: CapabilitySet) -> Vec<&'static str> {
    let mut missing = Vec::new();
    if !have.contains(CapabilitySet::NET_ADMIN) {
        missing.push("CAP_NET_ADMIN");
    }
    if !have.contains(CapabilitySet::NET_RAW) {
        missing.push("CAP_NET_RAW");
    }
    // The verifier lets programs compare and move packet pointers only with CAP_PERFMON.
    for (one, name) in [(CapabilitySet::BPF, "CAP_BPF"), (CapabilitySet::PERFMON, "CAP_PERFMON")] {
        if !have.intersects(one | CapabilitySet::SYS_ADMIN) {
            missing.push(name);
        }
    }
    missing
}

/// The sentence of a command-line error with its tip, without its usage.
pub(crate) fn one_line(e: &clap::Error) -> String {
    let text = e.to_string();
    let lines = text.lines().map(str::trim);
    let sentence = lines.clone().take_while(|l| !l.is_empty()).collect::<Vec<_>>().join(" ");
    let sentence = sentence.strip_prefix("error: ").unwrap_or(&sentence);
    match lines.clone().find_map(|l| l.strip_prefix("tip: ")) {
        Some(tip) => format!("{sentence}; {tip}"),
        None => sentence.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Cli, String> {
        Cli::try_parse_from(words.split(' ')).map_err(|e| one_line(&e))
    }

    #[test]
    fn the_definition_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults() {
        let o = parse("lvsd").unwrap().options;
        assert_eq!(o.socket, Path::new("/run/lvsd.sock"));
        assert_eq!(o.state_file(), Some(Path::new("/var/lib/lvsd/state")));
        assert_eq!((o.datapath, o.max_connections, o.workers), (DatapathKind::Auto, 1 << 20, None));
        let o = parse("lvsd --control-only").unwrap().options;
        assert_eq!(o.state_file(), None);
        let o = parse("lvsd --control-only --state-file x").unwrap().options;
        assert_eq!(o.state_file(), Some(Path::new("x")));
    }

    #[test]
    fn errors_are_one_line_with_option_value_and_limit() {
        for (words, parts) in [
            ("lvsd --max-connections 0", &["--max-connections", "0", "67108864"][..]),
            ("lvsd --max-connections 67108865", &["--max-connections", "67108865", "67108864"]),
            ("lvsd --max-connections 1k", &["'1k' for '--max-connections <N>'", "1 to 67108864", "no unit"]),
            ("lvsd --max-connections-ipv6 1k", &["'1k' for '--max-connections-ipv6 <N>'", "1 to 67108864"]),
            ("lvsd --workers 65", &["--workers", "65", "1 to 64"]),
            ("lvsd --datapath dpdk", &["--datapath", "dpdk", "afpacket"]),
            ("lvsd --nosuch", &["--nosuch"]),
            ("lvsd --interfaec eth0", &["--interfaec", "a similar argument exists: '--interface'"]),
            ("lvsd start", &["'start'"]),
            ("lvsd repaly --in x", &["repaly", "'replay'"]),
            ("lvsd replay --inn x --out y --config z", &["'--inn'", "'--in'"]),
            ("lvsd replay extra", &["extra"]),
            ("lvsd replay --in x", &["--config", "--out"]),
        ] {
            let e = parse(words).unwrap_err();
            assert!(!e.contains('\n'), "{e}");
            for part in parts {
                assert!(e.contains(part), "{words}: {e}");
            }
        }
    }

    #[test]
    fn what_this_version_or_machine_lacks_is_named() {
        let check = |words: &str| parse(words).unwrap().options.check();
        assert_eq!(check("lvsd --control-only --interface lo"), Ok(()));
        let e = check("lvsd --datapath nfqueue").unwrap_err().to_string();
        assert_eq!(
            e,
            "--datapath nfqueue: not available in this version; use auto, xdp, tc, afxdp or afpacket"
        );
        for (words, option) in [("--busy-poll 50", "--busy-poll"), ("--xdp-mode generic", "--xdp-mode")] {
            let e = check(&format!("lvsd --control-only {words}")).unwrap_err().to_string();
            assert_eq!(e, format!("{option} is for --datapath afxdp or xdp; it is auto"));
            assert_eq!(check(&format!("lvsd --control-only --datapath afxdp {words}")), Ok(()));
        }
        for words in ["", "--xdp-mode auto", "--xdp-mode native --busy-poll 50"] {
            let line = format!("lvsd --control-only --datapath xdp {words}");
            assert_eq!(check(line.trim_end()), Ok(()));
        }
        let e = check("lvsd --control-only --datapath xdp --xdp-mode generic").unwrap_err();
        assert_eq!(e, OptionsError::GenericTier);
        assert!(e.to_string().contains("use --datapath tc"), "{e}");
        for name in ["nosuch0", "lo-and-a-name-that-is-too-long"] {
            let e = check(&format!("lvsd --control-only --interface {name}")).unwrap_err();
            assert_eq!(e, OptionsError::NoInterface(name.to_owned()));
        }
        let e = check("lvsd --control-only --interface lo --interface lo").unwrap_err();
        assert_eq!(e, OptionsError::Twice("lo".to_owned()));
    }

    #[test]
    fn capabilities_are_named() {
        assert_eq!(missing(CapabilitySet::all()), [""; 0]);
        assert_eq!(
            missing(CapabilitySet::empty()),
            ["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_PERFMON"]
        );
        let old = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::SYS_ADMIN;
        assert_eq!(missing(old), [""; 0], "CAP_SYS_ADMIN stands for both");
        assert_eq!(missing(old - CapabilitySet::NET_RAW), ["CAP_NET_RAW"]);
    }
}
