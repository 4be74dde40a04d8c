//! ipvsadm's grammar as two tables: one row a command, one row an option.
//!
//! Parser, legality matrix, `--help` and the manual page all read these rows; nothing about an option is said twice.
//! Behaviour as of ipvsadm 1.31.

/// What a word of the command line may carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arg {
    /// Nothing.
    None,
    /// A value, in the same word or the next; the text is its name in the help.
    Required(&'static str),
    /// A value in the same word, or in the next one when that does not begin with `-`.
    Optional(&'static str),
}

/// Commands; exactly one of them, and it comes first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Cmd {
    AddService,
    EditService,
    DeleteService,
    Clear,
    AddServer,
    EditServer,
    DeleteServer,
    List,
    Zero,
    Set,
    StartDaemon,
    StopDaemon,
    Restore,
    Save,
    Help,
    Version,
}

/// A row of [`COMMANDS`].
#[derive(Debug)]
pub struct CmdSpec {
    /// Identity.
    pub cmd: Cmd,
    /// Letters, any of which means the command.
    pub short: &'static [char],
    /// Long name without dashes.
    pub long: &'static str,
    /// Its argument.
    pub arg: Arg,
    /// Name in error messages.
    pub name: &'static str,
    /// What follows in a synopsis.
    pub synopsis: &'static str,
    /// One sentence for help and manual.
    pub doc: &'static str,
}

/// Options.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Opt {
    Numeric,
    Connection,
    TcpService,
    UdpService,
    SctpService,
    FwmarkService,
    Ipv6,
    Scheduler,
    SchedFlags,
    Persistent,
    Netmask,
    Pe,
    Ops,
    RealServer,
    Gatewaying,
    Ipip,
    Masquerading,
    Weight,
    UThreshold,
    LThreshold,
    TunType,
    TunPort,
    TunNocsum,
    TunCsum,
    TunRemcsum,
    McastInterface,
    Timeout,
    Daemon,
    Stats,
    Rate,
    Thresholds,
    PersistentConn,
    TunInfo,
    Exact,
    Sort,
    Nosort,
    SyncId,
    SyncMaxlen,
    McastGroup,
    McastPort,
    McastTtl,
}

/// With which commands an option may, must or may not be used. Options that share the name share the place: `-t` and
/// `-u` are both the service's address, and only one may be given.
#[derive(PartialEq, Eq, Debug)]
pub struct Legal {
    /// Name in error messages.
    pub name: &'static str,
    /// Commands that need it.
    pub required: &'static [Cmd],
    /// Commands that take it.
    pub allowed: &'static [Cmd],
    /// Commands that take at most one of the options that say so.
    pub exclusive: &'static [Cmd],
}

/// Heading of an option in help and manual.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Section {
    Service,
    Server,
    Listing,
    Sync,
}

impl Section {
    /// All of them in the order of the help.
    pub const ALL: [Self; 4] = [Self::Service, Self::Server, Self::Listing, Self::Sync];

    /// The heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Service => "Virtual services",
            Self::Server => "Real servers",
            Self::Listing => "Listing",
            Self::Sync => "Connection synchronisation",
        }
    }
}

/// A row of [`OPTIONS`].
#[derive(Debug)]
pub struct OptSpec {
    /// Identity.
    pub opt: Opt,
    /// Letter.
    pub short: Option<char>,
    /// Long name without dashes.
    pub long: &'static str,
    /// Its value.
    pub arg: Arg,
    /// Its place in the matrix; `None`: legal anywhere, any number of times.
    pub legal: Option<&'static Legal>,
    /// Heading.
    pub section: Section,
    /// One sentence for help and manual, with range and default.
    pub doc: &'static str,
}

use Arg::{None as NoArg, Optional, Required};
use Cmd::*;

const SVC: &str = "SERVICE";
const SVC_SERVER: &str = "SERVICE -r SERVER";

#[rustfmt::skip]
const fn cmd(
    cmd: Cmd, short: &'static [char], long: &'static str, arg: Arg, name: &'static str, synopsis: &'static str,
    doc: &'static str,
) -> CmdSpec {
    CmdSpec { cmd, short, long, arg, name, synopsis, doc }
}

/// The commands, in the order of the help.
#[rustfmt::skip]
pub static COMMANDS: &[CmdSpec] = &[
    cmd(AddService,    &['A'], "add-service", NoArg, "add-service", SVC, "Add a virtual service."),
    cmd(EditService,   &['E'], "edit-service", NoArg, "edit-service", SVC,
        "Change a virtual service: scheduler, flags, persistence are replaced by what is given here."),
    cmd(DeleteService, &['D'], "delete-service", NoArg, "delete-service", SVC,
        "Delete a virtual service and its real servers."),
    cmd(Clear,         &['C'], "clear", NoArg, "flush", "", "Delete all virtual services."),
    cmd(Restore,       &['R'], "restore", NoArg, "restore", "",
        "Carry out commands from standard input, one a line, as --save prints them."),
    cmd(Save,          &['S'], "save", NoArg, "save", "", "Print the table as commands that --restore reads. As with ipvsadm, thresholds (-x, -y) are left out; lvsd's state \
         file has them."),
    cmd(AddServer,     &['a'], "add-server", NoArg, "add-server", SVC_SERVER, "Add a real server to a service."),
    cmd(EditServer,    &['e'], "edit-server", NoArg, "edit-server", SVC_SERVER,
        "Change a real server: method, weight, thresholds, tunnel are replaced by what is given here."),
    cmd(DeleteServer,  &['d'], "delete-server", NoArg, "delete-server", SVC_SERVER, "Delete a real server."),
    cmd(List,          &['L', 'l'], "list", NoArg, "list", "", "List services and servers; also without any command."),
    cmd(Zero,          &['Z'], "zero", NoArg, "zero", "[SERVICE]", "Zero the counters of one service, or of all."),
    cmd(Set,           &[],    "set", NoArg, "set", "TCP TCPFIN UDP",
        "Set the timeouts of connections in seconds, each 0 to 2678400; 0 keeps the value."),
    cmd(StartDaemon,   &[],    "start-daemon", Required("master|backup"), "start-daemon", "",
        "Start a connection synchronisation daemon."),
    cmd(StopDaemon,    &[],    "stop-daemon", Required("master|backup"), "stop-daemon", "",
        "Stop a connection synchronisation daemon."),
    cmd(Help,          &['h'], "help", NoArg, "help", "", "Print this help."),
    cmd(Version,       &['v'], "version", NoArg, "version", "",
        "Print the version of ipvsadm whose grammar and output this is."),
];

const NONE: &[Cmd] = &[];
const SET_SERVICE: &[Cmd] = &[AddService, EditService];
const SET_SERVER: &[Cmd] = &[AddServer, EditServer];
const LIST: &[Cmd] = &[List];
const START: &[Cmd] = &[StartDaemon];

const fn allowed(name: &'static str, allowed: &'static [Cmd]) -> Legal {
    Legal { name, required: NONE, allowed, exclusive: NONE }
}

static NUMERIC: Legal = allowed("numeric", &[List, Save]);
static CONNECTION: Legal = Legal { name: "connection", required: NONE, allowed: NONE, exclusive: LIST };
static SERVICE: Legal = Legal {
    name: "service-address",
    required: &[AddService, EditService, DeleteService, AddServer, EditServer, DeleteServer],
    allowed: &[Zero],
    exclusive: LIST,
};
static SCHEDULER: Legal = allowed("scheduler", SET_SERVICE);
static SCHED_FLAGS: Legal = allowed("sched-flags", SET_SERVICE);
static PERSISTENT: Legal = allowed("persistent", SET_SERVICE);
static NETMASK: Legal = allowed("netmask", SET_SERVICE);
static PE: Legal = allowed("persistence-engine", SET_SERVICE);
static OPS: Legal = allowed("ops", SET_SERVICE);
static SERVER: Legal = Legal {
    name: "real-server",
    required: &[AddServer, EditServer, DeleteServer],
    allowed: NONE,
    exclusive: NONE,
};
static FORWARDING: Legal = allowed("forwarding-method", SET_SERVER);
static WEIGHT: Legal = allowed("weight", SET_SERVER);
static UPPER: Legal = allowed("u-threshold", SET_SERVER);
static LOWER: Legal = allowed("l-threshold", SET_SERVER);
static TUN_TYPE: Legal = allowed("tun-type", SET_SERVER);
static TUN_PORT: Legal = allowed("tun-port", SET_SERVER);
static TUN_NOCSUM: Legal = allowed("tun-nocsum", SET_SERVER);
static TUN_CSUM: Legal = allowed("tun-csum", SET_SERVER);
static TUN_REMCSUM: Legal = allowed("tun-remcsum", SET_SERVER);
static MCAST_INTERFACE: Legal = allowed("mcast-interface", START);
static TIMEOUT: Legal = Legal { name: "timeout", required: NONE, allowed: NONE, exclusive: LIST };
static DAEMON: Legal = Legal { name: "daemon", required: NONE, allowed: NONE, exclusive: LIST };
static STATS: Legal = allowed("stats", LIST);
static RATE: Legal = allowed("rate", LIST);
static THRESHOLDS: Legal = allowed("thresholds", LIST);
static PERSISTENT_CONN: Legal = allowed("persistent-conn", LIST);
static TUN_INFO: Legal = allowed("tun-info", LIST);
static EXACT: Legal = allowed("exact", LIST);
static NOSORT: Legal = allowed("nosort", LIST);
static SYNC_ID: Legal = allowed("syncid", &[StartDaemon, StopDaemon]);
static SYNC_MAXLEN: Legal = allowed("sync-maxlen", START);
static MCAST_GROUP: Legal = allowed("mcast-group", START);
static MCAST_PORT: Legal = allowed("mcast-port", START);
static MCAST_TTL: Legal = allowed("mcast-ttl", START);

#[rustfmt::skip]
const fn opt(
    opt: Opt, short: Option<char>, long: &'static str, arg: Arg, legal: &'static Legal, section: Section,
    doc: &'static str,
) -> OptSpec {
    OptSpec { opt, short, long, arg, legal: Some(legal), section, doc }
}

use Section::{Listing, Server, Service, Sync};

/// The options. Their order is that in which conflicts are looked for.
#[rustfmt::skip]
pub static OPTIONS: &[OptSpec] = &[
    opt(Opt::Numeric, Some('n'), "numeric", NoArg, &NUMERIC, Listing, "Addresses and ports as numbers."),
    opt(Opt::Connection, Some('c'), "connection", NoArg, &CONNECTION, Listing, "List connections."),
    opt(Opt::TcpService, Some('t'), "tcp-service", Required("HOST[:PORT]"), &SERVICE, Service,
        "A TCP service: address or name, `[v6]:port`; port 0 or none means every port and needs -p."),
    opt(Opt::UdpService, Some('u'), "udp-service", Required("HOST[:PORT]"), &SERVICE, Service, "A UDP service."),
    opt(Opt::SctpService, None, "sctp-service", Required("HOST[:PORT]"), &SERVICE, Service, "An SCTP service."),
    opt(Opt::FwmarkService, Some('f'), "fwmark-service", Required("MARK"), &SERVICE, Service,
        "A service of packets with this firewall mark, 1 to 4294967295."),
    OptSpec { opt: Opt::Ipv6, short: Some('6'), long: "ipv6", arg: NoArg, legal: None, section: Service,
        doc: "After -f: the mark's IPv6 packets." },
    opt(Opt::Scheduler, Some('s'), "scheduler", Required("NAME"), &SCHEDULER, Service,
        "How servers are chosen (default wlc): rr wrr lc wlc sed nq fo ovf sh dh mh maglev, or what the subcommand schedulers lists \
         (IPVS's lblc lblcr twos are not in this version)."),
    opt(Opt::SchedFlags, Some('b'), "sched-flags", Required("FLAG,..."), &SCHED_FLAGS, Service,
        "sh-fallback and sh-port with -s sh, mh-fallback and mh-port with -s mh, flag-1 flag-2 flag-3 with any."),
    opt(Opt::Persistent, Some('p'), "persistent", Optional("SECONDS"), &PERSISTENT, Service,
        "Clients stay on their server for 1 to 2678400 seconds after their last connection (default 360)."),
    opt(Opt::Netmask, Some('M'), "netmask", Required("MASK"), &NETMASK, Service,
        "Which clients count as one for -p: an IPv4 mask (default 255.255.255.255) or an IPv6 prefix length, 1 to \
         128 (default 128)."),
    opt(Opt::Pe, None, "pe", Required("NAME"), &PE, Service, "Persistence engine, with -p."),
    opt(Opt::RealServer, Some('r'), "real-server", Required("HOST[:PORT]"), &SERVER, Server,
        "The server; without a port it is the service's. With -g and -i the port is always the service's."),
    opt(Opt::Gatewaying, Some('g'), "gatewaying", NoArg, &FORWARDING, Server, "Direct routing (the default)."),
    opt(Opt::Ipip, Some('i'), "ipip", NoArg, &FORWARDING, Server, "Through a tunnel."),
    opt(Opt::Masquerading, Some('m'), "masquerading", NoArg, &FORWARDING, Server, "Network address translation."),
    opt(Opt::Weight, Some('w'), "weight", Required("WEIGHT"), &WEIGHT, Server,
        "Capacity relative to the other servers, 0 to 2147483647 (default 1); 0 takes no new connections."),
    opt(Opt::UThreshold, Some('x'), "u-threshold", Required("N"), &UPPER, Server,
        "No new connections at this many, 0 to 2147483647; 0 is no limit (default)."),
    opt(Opt::LThreshold, Some('y'), "l-threshold", Required("N"), &LOWER, Server,
        "New connections again below this many, at most -x; 0 is three quarters of -x (default)."),
    opt(Opt::McastInterface, None, "mcast-interface", Required("IF"), &MCAST_INTERFACE, Sync,
        "Interface of the daemon's multicast, at most 15 bytes (default eth0)."),
    opt(Opt::Timeout, None, "timeout", NoArg, &TIMEOUT, Listing, "Print the timeouts of --set."),
    opt(Opt::Daemon, None, "daemon", NoArg, &DAEMON, Listing, "Print the synchronisation daemons."),
    opt(Opt::Stats, None, "stats", NoArg, &STATS, Listing, "Counters of connections, packets and bytes."),
    opt(Opt::Rate, None, "rate", NoArg, &RATE, Listing, "Rates of connections, packets and bytes a second."),
    opt(Opt::Thresholds, None, "thresholds", NoArg, &THRESHOLDS, Listing, "Thresholds of the servers."),
    opt(Opt::PersistentConn, None, "persistent-conn", NoArg, &PERSISTENT_CONN, Listing,
        "Persistent connections of the servers."),
    opt(Opt::Nosort, None, "nosort", NoArg, &NOSORT, Listing, "In the daemon's order."),
    OptSpec { opt: Opt::Sort, short: None, long: "sort", arg: NoArg, legal: None, section: Listing,
        doc: "In order of mark, family, protocol, address and port (the default)." },
    opt(Opt::SyncId, None, "syncid", Required("ID"), &SYNC_ID, Sync,
        "0 to 255 (default 0): a backup takes only messages of its id, with 0 of any."),
    opt(Opt::Exact, Some('X'), "exact", NoArg, &EXACT, Listing, "Whole numbers, without K, M, G and T."),
    opt(Opt::Ops, Some('o'), "ops", NoArg, &OPS, Service,
        "One-packet scheduling: every packet is a connection (UDP, or a firewall mark)."),
    opt(Opt::TunInfo, None, "tun-info", NoArg, &TUN_INFO, Listing, "Tunnel types of the servers."),
    opt(Opt::TunType, None, "tun-type", Required("ipip|gue|gre"), &TUN_TYPE, Server,
        "Encapsulation with -i (default ipip)."),
    opt(Opt::TunPort, None, "tun-port", Required("PORT"), &TUN_PORT, Server, "UDP port of gue, 1 to 65535."),
    opt(Opt::TunNocsum, None, "tun-nocsum", NoArg, &TUN_NOCSUM, Server,
        "gue, gre: no checksum outside (the default)."),
    opt(Opt::TunCsum, None, "tun-csum", NoArg, &TUN_CSUM, Server, "gue, gre: a checksum outside."),
    opt(Opt::TunRemcsum, None, "tun-remcsum", NoArg, &TUN_REMCSUM, Server, "gue: remote checksum offload."),
    opt(Opt::SyncMaxlen, None, "sync-maxlen", Required("BYTES"), &SYNC_MAXLEN, Sync,
        "Largest message, 1 to 65507 (default: by the interface's MTU)."),
    opt(Opt::McastGroup, None, "mcast-group", Required("ADDR"), &MCAST_GROUP, Sync,
        "IPv4 or IPv6 multicast group (default 224.0.0.81)."),
    opt(Opt::McastPort, None, "mcast-port", Required("PORT"), &MCAST_PORT, Sync,
        "UDP port, 1 to 65535 (default 8848)."),
    opt(Opt::McastTtl, None, "mcast-ttl", Required("TTL"), &MCAST_TTL, Sync,
        "TTL or hop limit, 1 to 255 (default 1)."),
];

/// A row of either table.
#[derive(Clone, Copy, Debug)]
pub enum Row {
    /// A command.
    Cmd(&'static CmdSpec),
    /// An option.
    Opt(&'static OptSpec),
}

impl Row {
    /// What the word carries.
    pub fn arg(self) -> Arg {
        match self {
            Row::Cmd(c) => c.arg,
            Row::Opt(o) => o.arg,
        }
    }
}

/// The row of a letter.
pub fn by_short(letter: char) -> Option<Row> {
    COMMANDS
        .iter()
        .find(|c| c.short.contains(&letter))
        .map(Row::Cmd)
        .or_else(|| OPTIONS.iter().find(|o| o.short == Some(letter)).map(Row::Opt))
}

/// The row of a long name (no abbreviations).
pub fn by_long(name: &str) -> Option<Row> {
    COMMANDS
        .iter()
        .find(|c| c.long == name)
        .map(Row::Cmd)
        .or_else(|| OPTIONS.iter().find(|o| o.long == name).map(Row::Opt))
}

/// The row of a command.
pub fn spec(cmd: Cmd) -> &'static CmdSpec {
    // Every command has a row (tested); the first stands in so that there is no panic to reach.
    COMMANDS.iter().find(|c| c.cmd == cmd).unwrap_or(&COMMANDS[0])
}
