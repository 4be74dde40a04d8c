//! `lvsctl realserver setup`, `check` and `undo` on a server with two interfaces, and each mistake that `check` knows: planted,
//! named, mended by the command that is printed, and gone.

mod mistakes;
mod setup;

use std::process::Output;

use crate::netns::{Netns, TempDir};
use crate::probe;

/// The virtual addresses, of the network of `s0`.
const VIPS: &str = "192.0.2.10 2001:db8:0:1::10";

/// A server and, in a namespace of its own, all that it sees of the network: a router (254, fe) and a director (1) on either
/// side.
struct Rig {
    // before the namespaces, so that what it holds in the file system is given back first
    _off: Off,
    server: Netns,
    net: Netns,
    dir: TempDir,
}

/// Takes decapsulators away that `check`'s own commands have pinned in the usual place.
struct Off(String);

impl Drop for Off {
    fn drop(&mut self) {
        for dev in ["s0", "t0"] {
            let mut command = std::process::Command::new("nsenter");
            command.arg(format!("--net=/run/netns/{}", self.0)).arg("--").arg(probe::lvsctl());
            // Most have none, which is no failure.
            let _ = command.args(["realserver", "decap", "--off", "--dev", dev]).output();
        }
    }
}

impl Rig {
    /// A server that nobody has set up.
    fn bare() -> Rig {
        let (server, net) = (Netns::new("server"), Netns::new("net"));
        for (dev, peer) in [("s0", "g0"), ("t0", "h0")] {
            net.ip(&format!(
                "link add {peer} type veth peer name {dev} netns {}\nlink set {peer} up",
                server.name()
            ));
            server.ip(&format!("link set {dev} up"));
        }
        net.ip(
            "addr add 192.0.2.254/24 dev g0\naddr add 192.0.2.1/24 dev g0\naddr add 198.51.100.254/24 dev h0\n\
             addr add 2001:db8:0:1::fe/64 dev g0 nodad\naddr add 2001:db8:0:1::1/64 dev g0 nodad",
        );
        server.ip("addr add 192.0.2.11/24 dev s0\naddr add 2001:db8:0:1::11/64 dev s0 nodad\n\
             addr add 198.51.100.11/24 dev t0\nroute add default via 192.0.2.254\n\
             route add default via 2001:db8:0:1::fe");
        Rig { _off: Off(server.name().to_owned()), server, net, dir: TempDir::new() }
    }

    /// A server set up for a mode as `lvsctl` does it.
    fn ready(mode: &str) -> Rig {
        let rig = Rig::bare();
        if mode != "nat" {
            let out = rig.setup(&format!("--mode {mode}"));
            assert!(out.status.success(), "{out:?}");
        }
        rig
    }

    fn lvsctl(&self, line: &str) -> Output {
        let mut command = self.server.command(&probe::lvsctl().to_string_lossy());
        command.arg("realserver").args(line.split_whitespace());
        command.output().expect("lvsctl starts")
    }

    /// Sets up with both virtual addresses; the record is in the rig's folder.
    fn setup(&self, more: &str) -> Output {
        self.lvsctl(&format!("setup --vip {VIPS} --record {} {more}", self.dir.join("record").display()))
    }

    fn undo(&self) -> Output {
        self.lvsctl(&format!("undo --record {}", self.dir.join("record").display()))
    }

    /// What `check` finds.
    fn check(&self, more: &str) -> Vec<Found> {
        let out = self.lvsctl(&format!("check --vip {VIPS} {more}"));
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let errors = String::from_utf8_lossy(&out.stderr);
        let mut found: Vec<Found> = Vec::new();
        for line in text.lines() {
            if let Some(mend) = line.strip_prefix("  mend: ") {
                found.last_mut().expect("a finding before its command").mend = mend.to_owned();
            } else if let Some((id, what)) =
                line.split_once(": ").filter(|_| !line.starts_with("all is well"))
            {
                found.push(Found { id: id.to_owned(), what: what.to_owned(), mend: String::new() });
            }
        }
        let want = i32::from(!found.is_empty());
        assert_eq!((out.status.code(), &*errors), (Some(want), ""), "check {more}:\n{text}");
        assert_eq!(text.starts_with("all is well"), found.is_empty(), "{text}");
        assert!(found.iter().all(|f| !f.mend.is_empty() && !f.what.is_empty()), "{text}");
        found
    }

    /// Runs a command line in the server as a shell would; `lvsctl` is the one under test.
    #[track_caller]
    fn shell(&self, line: &str) {
        let path = std::env::var("PATH").unwrap_or_default();
        let own = probe::lvsctl().parent().expect("a directory").display().to_string();
        let mut command = self.server.command("bash");
        command.args(["-ec", line]).env("PATH", format!("{own}:{path}:/usr/sbin:/sbin"));
        crate::netns::run(&mut command);
    }

    /// All of the server that set-up may change; not what the kernel does by itself while links come up.
    fn state(&self) -> String {
        let mut all = String::new();
        for line in ["ip -o address", "ip route", "ip -6 route"] {
            for l in self.server.sh(line).lines().filter(|l| !l.contains("fe80::")) {
                all.push_str(l);
                all.push('\n');
            }
        }
        for l in self.server.sh("ip -o link").lines() {
            let name = l.split(": ").nth(1).unwrap_or_default();
            let program =
                l.split_whitespace().skip_while(|w| !w.starts_with("prog/xdp")).collect::<Vec<_>>().join(" ");
            all.push_str(&format!("{name} {program}\n"));
        }
        for conf in ["all", "default", "lo", "s0", "t0"] {
            for name in ["arp_ignore", "arp_announce", "rp_filter"] {
                all.push_str(&self.server.sh(&format!("sysctl net.ipv4.conf.{conf}.{name}")));
            }
        }
        all
    }
}

/// A finding of `check`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Found {
    id: String,
    what: String,
    mend: String,
}
