//! The two topologies (drawn in `main.rs`) and the roles in them.
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use crate::director::{Lvsd, Nft, has_xdp_tier};
use crate::netns::{Netns, TempDir, run};
use crate::probe;
use crate::servers::Nginx;
use crate::wait::{secs, until};

/// Address family of a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Family; 2] = [Family::V4, Family::V6];
}

/// Forwarding method of a scenario, and with it the topology.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Nat,
    Dr,
    /// By tunnel, in DR's topology: the servers decapsulate with our own program, and reply past the director.
    Ipip,
    /// The same with GRE.
    Gre,
}

impl Mode {
    /// The method as `-a` takes it.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Mode::Nat => "-m",
            Mode::Dr => "-g",
            Mode::Ipip => "-i",
            Mode::Gre => "-i --tun-type gre",
        }
    }
}

/// The addresses of one family in one topology.
#[derive(Clone, Copy)]
struct Plan {
    client: &'static str,
    client_len: u8,
    /// The director's address on the client's segment (for DR that is the DIP).
    outer: &'static str,
    vip: &'static str,
    dip: &'static str,
    /// What server k's address begins with; its number follows, as 11, 12, 13.
    rip: &'static str,
    lan_len: u8,
}

const fn plan(mode: Mode, family: Family) -> Plan {
    match (mode, family) {
        (Mode::Nat, Family::V4) => Plan {
            client: "198.51.100.10",
            client_len: 24,
            outer: "198.51.100.1",
            vip: "192.0.2.10",
            dip: "10.0.0.1",
            rip: "10.0.0.1",
            lan_len: 24,
        },
        (Mode::Nat, Family::V6) => Plan {
            client: "2001:db8:c::10",
            client_len: 64,
            outer: "2001:db8:c::1",
            vip: "2001:db8:0:1::10",
            dip: "2001:db8:a::1",
            rip: "2001:db8:a::1",
            lan_len: 64,
        },
        (Mode::Dr | Mode::Ipip | Mode::Gre, Family::V4) => Plan {
            client: "192.0.2.100",
            client_len: 24,
            outer: "192.0.2.1",
            vip: "192.0.2.10",
            dip: "192.0.2.1",
            rip: "192.0.2.1",
            lan_len: 24,
        },
        (Mode::Dr | Mode::Ipip | Mode::Gre, Family::V6) => Plan {
            client: "2001:db8:0:1::100",
            client_len: 64,
            outer: "2001:db8:0:1::1",
            vip: "2001:db8:0:1::10",
            dip: "2001:db8:0:1::1",
            rip: "2001:db8:0:1::1",
            lan_len: 64,
        },
    }
}

/// One real server: its namespace, its device is `s0`.
pub(crate) struct Server {
    /// `s1`, `s2`, `s3`: what it answers.
    pub(crate) name: String,
    /// 1, 2, 3.
    pub(crate) number: usize,
    pub(crate) ns: Netns,
    pub(crate) nginx: Option<Nginx>,
}

/// A topology with its programs.
pub(crate) struct Lab {
    pub(crate) mode: Mode,
    /// Queues that every device has.
    queues: u32,
    // Fields are dropped in this order: programs before the namespaces that they run in.
    /// The daemon, once started.
    pub(crate) lvsd: Option<Lvsd>,
    pub(crate) servers: Vec<Server>,
    pub(crate) client: Netns,
    pub(crate) director: Netns,
    /// Holds the bridge, so that the director has only its own devices, as on a real network.
    pub(crate) lan: Netns,
    pub(crate) dir: TempDir,
}

impl Lab {
    /// Builds the topology of `mode` with three servers, nothing running yet.
    pub(crate) fn new(mode: Mode) -> Lab {
        Lab::with_queues(mode, 1)
    }

    /// As [`Lab::new`]; every device has `queues` queues in each direction (veth has one unless told otherwise).
    pub(crate) fn with_queues(mode: Mode, queues: u32) -> Lab {
        let lab = Lab {
            mode,
            queues,
            lvsd: None,
            servers: (1..=3)
                .map(|number| Server {
                    name: format!("s{number}"),
                    number,
                    ns: Netns::new(&format!("s{number}")),
                    nginx: None,
                })
                .collect(),
            client: Netns::new("client"),
            director: Netns::new("director"),
            lan: Netns::new("lan"),
            dir: TempDir::new(),
        };
        lab.lan.ip("link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\nlink set br0 up");
        for s in &lab.servers {
            lab.plug(&s.ns, "s0", &s.name, &format!("02:00:00:00:00:1{}", s.number));
            lab.configure_server(s);
        }
        match mode {
            Mode::Nat => {
                lab.plug(&lab.director, "i0", "dir", "02:00:00:00:00:01");
                lab.lay_outer_cable(queues);
            }
            Mode::Dr | Mode::Ipip | Mode::Gre => {
                lab.plug(&lab.director, "d0", "dir", "02:00:00:00:00:01");
                lab.plug(&lab.client, "c0", "cli", "02:00:00:00:00:c0");
            }
        }
        lab.configure_ends();
        if has_xdp_tier() {
            lab.take_redirected();
        }
        lab.settle();
        lab
    }

    /// Has the far end on the bridge take frames that XDP redirects to it: a veth does with NAPI on.
    fn take_redirected(&self) {
        self.lan.sh("ethtool -K dir gro on");
    }

    /// Waits until the kernel has made the routes of all IPv6 addresses, which it does some time after it took the address.
    fn settle(&self) {
        let words = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        let others = [&self.client, &self.director, &self.lan];
        for ns in self.servers.iter().map(|s| &s.ns).chain(others) {
            until("the routes of the IPv6 addresses", secs(20), || {
                let routes = words(&ns.sh("ip -6 route show table local"));
                let addresses = words(&ns.sh("ip -6 -o addr show scope global"));
                let mut have = addresses.windows(2).filter(|w| w[0] == "inet6");
                have.all(|w| routes.iter().any(|r| Some(r.as_str()) == w[1].split('/').next())).then_some(())
            });
        }
    }

    /// With NAT: connects client and director.
    fn lay_outer_cable(&self, queues: u32) {
        self.client.ip(&format!(
            "link add c0 address 02:00:00:00:00:c0 numrxqueues {queues} numtxqueues {queues} type veth peer name o0 \
             numrxqueues {queues} numtxqueues {queues} netns {}",
            self.director.name()
        ));
        self.director.ip("link set o0 address 02:00:00:00:00:d0 up");
        self.client.ip("link set c0 up");
        if has_xdp_tier() {
            self.client.sh("ethtool -K c0 gro on");
        }
    }

    /// With NAT: the cable between client and director is taken away with its devices, and laid anew.
    pub(crate) fn replace_outer_cable(&self) {
        self.client.ip("link del c0");
        self.lay_outer_cable(1);
        self.configure_outer();
    }

    /// With nginx in every server.
    pub(crate) fn with_nginx(mode: Mode) -> Lab {
        let mut lab = Lab::new(mode);
        lab.start_nginx();
        lab
    }

    /// Starts nginx in every server.
    pub(crate) fn start_nginx(&mut self) {
        for s in &mut self.servers {
            s.nginx = Some(Nginx::start(&s.ns, &s.name, self.dir.join(&s.name)));
        }
    }

    /// Connects `ns` to the bridge: device `dev` there, bridge port `port`.
    pub(crate) fn plug(&self, ns: &Netns, dev: &str, port: &str, mac: &str) {
        let many = self.queue_words();
        self.lan.ip(&format!(
            "link add {port} {many} type veth peer name {dev} address {mac} {many} netns {}\nlink set {port} master br0 up",
            ns.name()
        ));
        ns.ip(&format!("link set {dev} up"));
    }

    fn queue_words(&self) -> String {
        format!("numrxqueues {n} numtxqueues {n}", n = self.queues)
    }

    fn configure_server(&self, s: &Server) {
        let mut ip = String::new();
        for family in Family::BOTH {
            let p = plan(self.mode, family);
            let nodad = if family == Family::V6 { " nodad" } else { "" };
            let _ = writeln!(ip, "addr add {}/{} dev s0{nodad}", self.rip(family, s.number), p.lan_len);
            let _ = match self.mode {
                Mode::Nat => writeln!(ip, "route add default via {}", p.dip),
                Mode::Dr | Mode::Ipip | Mode::Gre => Ok(()),
            };
        }
        s.ns.ip(&ip);
        if self.mode != Mode::Nat {
            self.set_up(s, &["--no-advmss"]);
        }
    }

    /// Makes a namespace a real server by `lvsctl realserver setup`, with more words. The decapsulator is held by the
    /// interface, so that it ends with the namespace.
    pub(crate) fn set_up(&self, s: &Server, more: &[&str]) {
        let mode = match self.mode {
            Mode::Nat => panic!("a server behind NAT needs no set-up"),
            Mode::Dr => "dr",
            Mode::Ipip => "ipip",
            Mode::Gre => "gre",
        };
        let mut command = s.ns.command(&probe::lvsctl().to_string_lossy());
        command.args(["realserver", "setup", "--dev", "s0", "--mode", mode, "--vip"]);
        command.args(Family::BOTH.map(|family| self.vip(family).to_string())).args(more);
        command.arg("--pin-dir").arg(self.dir.join("pins"));
        command.arg("--record").arg(self.dir.join(&format!("{}.record", s.name)));
        run(&mut command);
    }

    /// Loads the decapsulator of a server again, held by the interface.
    pub(crate) fn decapsulate(&self, s: &Server) {
        let mut command = s.ns.command(&probe::lvsctl().to_string_lossy());
        command.args(["realserver", "decap", "--dev", "s0", "--pin-dir"]).arg(self.dir.join("pins"));
        let said = run(&mut command);
        for family in Family::BOTH {
            let rip = self.rip(family, s.number).to_string();
            assert!(said.contains(&rip), "the decapsulator knows nothing of {rip}: {said}");
        }
    }

    fn configure_ends(&self) {
        self.director.sysctl("net.ipv4.ip_forward", "1");
        self.director.sysctl("net.ipv6.conf.all.forwarding", "1");
        // As with IPVS: only the device that has the VIP answers for it, and the VIP asks for nobody.
        self.director.sysctl("net.ipv4.conf.all.arp_ignore", "1");
        self.director.sysctl("net.ipv4.conf.all.arp_announce", "2");
        self.configure_outer();
        if self.mode == Mode::Nat {
            self.director.ip(&self.addresses(|p| (p.dip, p.lan_len), "i0"));
        }
    }

    /// `addr add` of an address of each family.
    fn addresses(&self, of: impl Fn(Plan) -> (&'static str, u8), dev: &str) -> String {
        let line = |family| {
            let nodad = if family == Family::V6 { " nodad" } else { "" };
            let (addr, len) = of(plan(self.mode, family));
            format!("addr add {addr}/{len} dev {dev}{nodad}\n")
        };
        Family::BOTH.map(line).concat()
    }

    /// Addresses and routes between client and director.
    fn configure_outer(&self) {
        self.configure_outer_on(self.outer_dev());
        self.client.ip(&self.addresses(|p| (p.client, p.client_len), "c0"));
        if self.mode == Mode::Nat {
            let gateway = |family| format!("route add default via {}\n", plan(self.mode, family).outer);
            self.client.ip(&Family::BOTH.map(gateway).concat());
        }
    }

    /// The director's addresses on the client's segment, on a device of its.
    pub(crate) fn configure_outer_on(&self, dev: &str) {
        self.director.ip(&self.addresses(|p| (p.outer, p.client_len), dev));
        let vip = |family| format!("addr add {} dev {dev}\n", vip_address(plan(self.mode, family), family));
        self.director.ip(&Family::BOTH.map(vip).concat());
    }

    /// Has everybody know everybody's link address, so that no packet must wait for one.
    pub(crate) fn acquaint(&self, family: Family) {
        for s in &self.servers {
            self.director.sh(&format!("ping -n -c 1 -W 5 {}", self.rip(family, s.number)));
        }
        self.client.sh(&format!("ping -n -c 1 -W 5 {}", self.outer(family)));
        self.client.sh(&format!("ping -n -c 1 -W 5 {}", self.vip(family)));
    }

    /// The director's device towards the client.
    pub(crate) fn outer_dev(&self) -> &'static str {
        match self.mode {
            Mode::Nat => "o0",
            Mode::Dr | Mode::Ipip | Mode::Gre => "d0",
        }
    }

    /// The director's devices.
    pub(crate) fn director_devs(&self) -> &'static [&'static str] {
        match self.mode {
            Mode::Nat => &["o0", "i0"],
            Mode::Dr | Mode::Ipip | Mode::Gre => &["d0"],
        }
    }

    pub(crate) fn vip(&self, family: Family) -> IpAddr {
        parse(plan(self.mode, family).vip)
    }

    /// The VIP with a port.
    pub(crate) fn vip_port(&self, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(self.vip(family), port)
    }

    /// The director's own address on the client's segment.
    pub(crate) fn outer(&self, family: Family) -> IpAddr {
        parse(plan(self.mode, family).outer)
    }

    /// The director's own address on the servers' segment.
    pub(crate) fn dip(&self, family: Family) -> IpAddr {
        parse(plan(self.mode, family).dip)
    }

    pub(crate) fn cip(&self, family: Family) -> IpAddr {
        parse(plan(self.mode, family).client)
    }

    /// Address of server `number` (1, 2, 3).
    pub(crate) fn rip(&self, family: Family, number: usize) -> IpAddr {
        parse(&format!("{}{number}", plan(self.mode, family).rip))
    }

    /// The server called `name`.
    pub(crate) fn server(&self, name: &str) -> &Server {
        self.servers.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no server is called {name}"))
    }

    /// Starts the daemon in the director, ready to be configured.
    pub(crate) fn start_lvsd(&mut self) {
        self.start_lvsd_limited(20_000);
    }

    /// As [`Lab::start_lvsd`] on these devices only.
    pub(crate) fn start_lvsd_on(&mut self, devs: &[&str]) {
        self.lvsd = Some(Lvsd::start(&self.director, devs, &self.dir, 20_000, &[]));
    }

    /// As [`Lab::start_lvsd`] with another limit of connections.
    pub(crate) fn start_lvsd_limited(&mut self, limit: u32) {
        self.lvsd = Some(Lvsd::start(&self.director, self.director_devs(), &self.dir, limit, &[]));
    }

    /// As [`Lab::start_lvsd`] with more arguments.
    pub(crate) fn start_lvsd_with(&mut self, more: &[&str]) {
        self.lvsd = Some(Lvsd::start(&self.director, self.director_devs(), &self.dir, 20_000, more));
    }

    /// The running daemon.
    pub(crate) fn d(&self) -> &Lvsd {
        self.lvsd.as_ref().expect("the daemon was started")
    }

    /// A service on the VIP with all three servers in the order s1, s2, s3, weights as given. `proto` is `-t` or `-u`.
    /// With NAT the servers get `server_port`; else the port must be the service's.
    pub(crate) fn service(
        &self,
        proto: &str,
        service: SocketAddr,
        scheduler: &str,
        weights: [u32; 3],
        server_port: u16,
    ) {
        let family = if service.is_ipv4() { Family::V4 } else { Family::V6 };
        if self.mode != Mode::Nat {
            // A client may use a port again whose entry the director, which sees one side only, still has in FIN_WAIT. By
            // default that keeps its server (as IPVS does) and an exact spread would be off by one now and then.
            self.d().ctl_ok("sysctl conn_reuse_mode=3");
        }
        self.d().ctl_ok(&format!("-A {proto} {service} -s {scheduler}"));
        for (s, weight) in self.servers.iter().zip(weights) {
            let server = SocketAddr::new(self.rip(family, s.number), server_port);
            let method = self.mode.flag();
            self.d().ctl_ok(&format!("-a {proto} {service} -r {server} {method} -w {weight}"));
        }
    }

    /// nftables in the director's place, for the harness's own tests: DNAT round robin over the servers, in order.
    pub(crate) fn start_nft(&self, family: Family, port: u16, protocol: &str) -> Nft {
        let servers: Vec<IpAddr> = self.servers.iter().map(|s| self.rip(family, s.number)).collect();
        Nft::start(&self.director, self.vip(family), port, protocol, &servers)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            if let Some(lvsd) = &self.lvsd {
                lvsd.print_all(&self.director);
            }
            for s in &self.servers {
                println!(
                    "--- ip neigh, {}\n{}",
                    s.name,
                    String::from_utf8_lossy(&s.ns.try_sh("ip neigh").stdout)
                );
            }
        }
    }
}

/// The VIP as an address of a device; never one to send from by choice (IPv6 prefers the closest prefix).
fn vip_address(p: Plan, family: Family) -> String {
    match family {
        Family::V4 => format!("{}/32", p.vip),
        Family::V6 => format!("{}/128 nodad preferred_lft 0", p.vip),
    }
}

fn parse(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}
