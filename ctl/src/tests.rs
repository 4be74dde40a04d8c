//! The command line up to the point where the daemon would be asked: legality matrix, messages, meanings.

use std::io::Cursor;
use std::net::Ipv4Addr;

use ipvs_netlink::{
    Af, ClientError, DaemonState, FwdMethod, Netmask, SVC_F_ONEPACKET, SVC_F_PERSISTENT, SVC_F_SCHED1,
    SVC_F_SCHED2, SVC_F_SCHED3, ServiceKey, Tunnel,
};

use crate::command::Command;
use crate::error::{CliError, EXIT_REFUSED, EXIT_USAGE};
use crate::grammar::{COMMANDS, Cmd, OPTIONS, spec};
use crate::lowargs::LowArgs;
use crate::names::{NoNames, TCP, UDP};
use crate::print::View;
use crate::{Io, run};

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn low(line: &str) -> Result<LowArgs, CliError> {
    LowArgs::parse(&words(line))
}

fn meaning(line: &str) -> Result<Command, CliError> {
    Command::from_low(&low(line)?, &NoNames)
}

/// ipvsadm's matrix: `+` required, `o` allowed, `1` at most one of those in the column, `x` illegal. Columns as in
/// [`COLUMNS`].
const MATRIX: &str = "
    numeric           -n                        x x x x x x x o o x x x x x
    connection        -c                        x x x x x x x 1 x x x x x x
    service-address   -t_10.0.0.1:80            + + + x + + + 1 x x o x x x
    service-address   -u_10.0.0.1:80            + + + x + + + 1 x x o x x x
    service-address   --sctp-service_10.0.0.1:80 + + + x + + + 1 x x o x x x
    service-address   -f_1                      + + + x + + + 1 x x o x x x
    scheduler         -s_rr                     o o x x x x x x x x x x x x
    sched-flags       -b_flag-1                 o o x x x x x x x x x x x x
    persistent        -p                        o o x x x x x x x x x x x x
    netmask           -M_255.255.255.0          o o x x x x x x x x x x x x
    persistence-engine --pe_sip                 o o x x x x x x x x x x x x
    ops               -o                        o o x x x x x x x x x x x x
    real-server       -r_10.1.0.1               x x x x + + + x x x x x x x
    forwarding-method -g                        x x x x o x o x x x x x x x
    forwarding-method -i                        x x x x o x o x x x x x x x
    forwarding-method -m                        x x x x o x o x x x x x x x
    weight            -w_1                      x x x x o x o x x x x x x x
    u-threshold       -x_1                      x x x x o x o x x x x x x x
    l-threshold       -y_1                      x x x x o x o x x x x x x x
    tun-type          --tun-type_ipip           x x x x o x o x x x x x x x
    tun-port          --tun-port_1              x x x x o x o x x x x x x x
    tun-nocsum        --tun-nocsum              x x x x o x o x x x x x x x
    tun-csum          --tun-csum                x x x x o x o x x x x x x x
    tun-remcsum       --tun-remcsum             x x x x o x o x x x x x x x
    mcast-interface   --mcast-interface_eth0    x x x x x x x x x x x x o x
    timeout           --timeout                 x x x x x x x 1 x x x x x x
    daemon            --daemon                  x x x x x x x 1 x x x x x x
    stats             --stats                   x x x x x x x o x x x x x x
    rate              --rate                    x x x x x x x o x x x x x x
    thresholds        --thresholds              x x x x x x x o x x x x x x
    persistent-conn   --persistent-conn         x x x x x x x o x x x x x x
    tun-info          --tun-info                x x x x x x x o x x x x x x
    exact             --exact                   x x x x x x x o x x x x x x
    nosort            --nosort                  x x x x x x x o x x x x x x
    syncid            --syncid_1                x x x x x x x x x x x x o o
    sync-maxlen       --sync-maxlen_1           x x x x x x x x x x x x o x
    mcast-group       --mcast-group_224.0.0.81  x x x x x x x x x x x x o x
    mcast-port        --mcast-port_1            x x x x x x x x x x x x o x
    mcast-ttl         --mcast-ttl_1             x x x x x x x x x x x x o x
";

const COLUMNS: [(&str, Cmd); 14] = [
    ("-A", Cmd::AddService),
    ("-E", Cmd::EditService),
    ("-D", Cmd::DeleteService),
    ("-C", Cmd::Clear),
    ("-a", Cmd::AddServer),
    ("-d", Cmd::DeleteServer),
    ("-e", Cmd::EditServer),
    ("-L", Cmd::List),
    ("-S", Cmd::Save),
    ("-R", Cmd::Restore),
    ("-Z", Cmd::Zero),
    ("--set 1 2 3", Cmd::Set),
    ("--start-daemon master", Cmd::StartDaemon),
    ("--stop-daemon master", Cmd::StopDaemon),
];

#[test]
fn every_cell_of_the_matrix() {
    let rows: Vec<Vec<&str>> = MATRIX
        .lines()
        .map(|l| l.split_whitespace().collect())
        .filter(|r: &Vec<&str>| !r.is_empty())
        .collect();
    let cell = |name: &str, column: usize| rows.iter().find(|r| r[0] == name).map(|r| r[2 + column]);
    let mut cells = 0;
    for (column, (command, cmd)) in COLUMNS.into_iter().enumerate() {
        let name = spec(cmd).name;
        // The command with what it requires, but without one of them.
        let base = |without: &str| {
            let mut line = command.to_owned();
            for (required, words) in [("service-address", "-t 10.0.0.1:80"), ("real-server", "-r 10.1.0.1")] {
                if required != without && cell(required, column) == Some("+") {
                    line = format!("{line} {words}");
                }
            }
            line
        };
        for row in &rows {
            cells += 1;
            let option = row[1].replace('_', " ");
            let line = format!("{} {option}", base(row[0]));
            let got = low(&line).map_err(|e| (e.code, e.message));
            match row[2 + column] {
                "o" | "1" => assert!(got.is_ok(), "{line}: {got:?}"),
                "+" => {
                    assert!(got.is_ok(), "{line}: {got:?}");
                    let message =
                        format!("You need to supply the '{}' option for the '{name}' command", row[0]);
                    let got = low(&base(row[0])).map_err(|e| (e.code, e.message));
                    assert_eq!(got, Err((EXIT_USAGE, message)));
                }
                _ => {
                    let message = format!("Illegal '{}' option with the '{name}' command", row[0]);
                    assert_eq!(got, Err((EXIT_USAGE, message)), "{line}");
                }
            }
        }
    }
    assert_eq!(cells, 39 * 14);
    // The matrix above has every option of the table but the two that are legal anywhere.
    assert_eq!(rows.len(), OPTIONS.len() - 2);
    assert_eq!(OPTIONS.iter().filter(|o| o.legal.is_none()).count(), 2);
}

#[test]
fn exclusive_options_exclude_each_other() {
    let exclusive = ["-c", "-t 10.0.0.1:80", "--timeout", "--daemon"];
    for a in exclusive {
        for b in exclusive {
            let e = low(&format!("-L {a} {b}")).unwrap_err();
            assert_eq!(e.code, EXIT_USAGE);
            let phrase = if a == b { "multiple '" } else { "The option '" };
            assert!(e.message.starts_with(phrase), "{a} {b}: {e}");
        }
    }
    for other in ["-c", "--timeout", "--daemon"] {
        for variant in [
            "--stats",
            "--rate",
            "--thresholds",
            "--persistent-conn",
            "--exact",
            "-n",
            "--nosort",
            "--tun-info",
        ] {
            let legal = match variant {
                "--persistent-conn" => other == "-c",
                "--exact" | "-n" | "--nosort" | "--tun-info" => true,
                _ => false,
            };
            let got = low(&format!("-L {other} {variant}"));
            assert_eq!(got.is_ok(), legal, "{other} {variant}: {got:?}");
            if let Err(e) = got {
                assert!(e.message.starts_with("options conflicts in the list command"), "{e}");
            }
        }
    }
}

#[test]
fn tables_are_sound() {
    for cmd in COMMANDS {
        assert_eq!(spec(cmd.cmd).long, cmd.long);
    }
    let mut words: Vec<String> = COMMANDS.iter().map(|c| c.long.to_owned()).collect();
    words.extend(OPTIONS.iter().map(|o| o.long.to_owned()));
    words.extend(COMMANDS.iter().flat_map(|c| c.short.iter().map(char::to_string)));
    words.extend(OPTIONS.iter().filter_map(|o| o.short.map(|c| c.to_string())));
    let all = words.len();
    words.sort();
    words.dedup();
    assert_eq!(words.len(), all, "a word means two things");
    assert!(
        COMMANDS
            .iter()
            .map(|c| c.doc)
            .chain(OPTIONS.iter().map(|o| o.doc))
            .all(|doc| doc.ends_with(['.', ')']))
    );
}

/// Line, exit status, beginning of the message; one of each kind that ipvsadm has.
const MESSAGES: &[(&str, i32, &str)] = &[
    (
        "-n",
        255,
        "-n: an option before the command; the command (such as -A, -a, -L) comes first; try `lvsctl -h'",
    ),
    ("-t 10.0.0.1:80 -A", 255, "-t: an option before the command"),
    ("-Q", 255, "-Q: unknown option; try `lvsctl -h'"),
    ("-nQ", 255, "-n: an option before the command"),
    ("bogus", 255, "bogus: unknown command; try `lvsctl -h'"),
    ("list", 255, "list: unknown command; is --list meant?; try `lvsctl -h'"),
    ("numeric", 255, "numeric: unknown command; try"),
    ("-- -A", 255, "-A: unknown command; try"),
    ("--start-daemon", 255, "--start-daemon: missing argument; try `lvsctl -h'"),
    ("--add", 255, "--add: unknown option; try `lvsctl -h'"),
    ("-A --bogus", 255, "--bogus: unknown option"),
    ("-L --socket /s", 255, "--socket: unknown option here: it comes before the command"),
    ("-L --num", 255, "--num: unknown option"),
    ("--set -1 0 0", 255, "-1: unknown option"),
    ("-A -t", 255, "-t: missing argument"),
    ("-A -t 10.0.0.1:80 -s rr -p -5", 255, "-5: unknown option"),
    ("-A -D -t 10.0.0.1:80", 2, "multiple commands: invalid option `-D'"),
    ("-A -t 10.0.0.1:80 -h", 2, "multiple commands: invalid option `-h'"),
    ("-L --set 1 2 3", 2, "multiple commands: invalid option `--set'"),
    ("-A -t 10.0.0.1:80 -u 10.0.0.1:80", 2, "multiple 'service-address' options specified"),
    ("-a -t 10.0.0.1:80 -r 10.1.0.1 -g -m", 2, "multiple 'forwarding-method' options specified"),
    ("-A -t 10.0.0.1:80 extra", 2, "unexpected argument extra"),
    ("extra -A -t 10.0.0.1:80", 2, "unexpected argument extra"),
    ("--set 1 2", 2, "--set option requires 3 timeout values"),
    ("--set 1 2 3 4", 2, "unexpected argument 4"),
    ("--set a b c", 2, "invalid timeout value `a' specified"),
    ("--set 1 1 2678401", 2, "invalid timeout value `2678401' specified: not within 0 to 2678400 seconds"),
    ("-A -t 10.0.0.1:65536", 2, "illegal virtual server address[:port] specified: -t 10.0.0.1:65536: port"),
    ("-A --udp-service=[::1]", 2, "illegal virtual server address[:port] specified: --udp-service [::1]"),
    ("-A -t unknown:80", 2, "illegal virtual server address[:port] specified: -t unknown:80: host `unknown'"),
    (
        "-A -t 10.0.0.1:unknown",
        2,
        "illegal virtual server address[:port] specified: -t 10.0.0.1:unknown: port",
    ),
    ("-a -t 10.0.0.1:80 -r 10.1.0.300", 2, "illegal real server address[:port] specified: -r 10.1.0.300"),
    ("-A -t 10.0.0.1", 2, "Zero port specified for non-persistent service"),
    ("-E -u 10.0.0.1:0", 2, "Zero port specified for non-persistent service"),
    ("-A -f 0", 2, "invalid fwmark value `0' specified"),
    ("-A -f 4294967296", 2, "invalid fwmark value `4294967296' specified"),
    ("-L -6", 2, "-6 used before -f"),
    ("-A -t 10.0.0.1:80 -6", 2, "-6 used before -f"),
    ("-A -t 10.0.0.1:80 -p 0", 2, "invalid timeout value `0' specified: not within 1 to"),
    ("-A -t 10.0.0.1:80 -p2678401", 2, "invalid timeout value `2678401' specified"),
    ("-A -t 10.0.0.1:80 -s rr -b sh-port", 2, "incompatible scheduler flag `sh-port': the scheduler is rr"),
    ("-A -t 10.0.0.1:80 -b mh-port", 2, "incompatible scheduler flag `mh-port': the scheduler is wlc"),
    ("-A -t 10.0.0.1:80 -b foo", 2, "invalid scheduler flag `foo'"),
    ("-A -t 10.0.0.1:80 -M x", 2, "illegal virtual server persistent mask specified: -M x"),
    (
        "-A -t 10.0.0.1:80 -p -M /24",
        2,
        "illegal virtual server persistent mask specified: -M /24 is no IPv4 mask",
    ),
    ("-A -t [::1]:80 -M 129", 2, "illegal ipv6 netmask specified: -M 129"),
    ("-A -f 1 -6 -M 255.255.255.0", 2, "illegal ipv6 netmask specified"),
    ("-A -t 10.0.0.1:80 -o", 2, "One-Packet Scheduling is only for UDP virtual services"),
    ("-A --sctp-service 10.0.0.1:80 -o", 2, "One-Packet Scheduling is only for UDP virtual services"),
    ("-A -t 10.0.0.1:80 -s averyverylongname", 255, "Scheduler or persistence engine not found: scheduler"),
    ("-A -t 10.0.0.1:80 --pe averyveryverylongname", 255, "Scheduler or persistence engine not found: pers"),
    (
        "-a -t 10.0.0.1:80 -r 10.1.0.1 -w -1",
        2,
        "illegal weight specified: -w -1 is not within 0 to 2147483647",
    ),
    ("-a -t 10.0.0.1:80 -r 10.1.0.1 -w 2147483648", 2, "illegal weight specified"),
    ("-a -t 10.0.0.1:80 -r 10.1.0.1 -x a", 2, "illegal u_threshold specified"),
    ("-a -t 10.0.0.1:80 -r 10.1.0.1 --l-threshold=a", 2, "illegal l_threshold specified: --l-threshold a"),
    ("-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-type x", 2, "illegal tunnel type specified"),
    ("-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-port 0", 2, "illegal tunnel port specified"),
    (
        "-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-type gue",
        2,
        "You need to supply the 'tun-port' option for the 'gue'",
    ),
    (
        "-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-port 9",
        2,
        "Illegal 'tun-port' option with the 'ipip' tunnel type",
    ),
    (
        "-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-csum",
        2,
        "Illegal 'tun-csum' option with the 'ipip' tunnel type",
    ),
    (
        "-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-type gre --tun-remcsum",
        2,
        "Illegal 'tun-remcsum' option with the 'gre' tunnel type",
    ),
    (
        "-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-type gre --tun-csum --tun-nocsum",
        2,
        "The option 'tun-csum' conflicts with the 'tun-nocsum' option in the 'gre' tunnel type",
    ),
    ("-a -t 10.0.0.1:80 -r 10.1.0.1 -m --tun-type gre", 2, "Tunnel options conflict with forward method"),
    ("-a -t 10.0.0.1:80 -r 10.1.0.1 --tun-type ipip", 2, "Tunnel options conflict with forward method"),
    ("-a -t 10.0.0.1:80 -r [::1]:80 -m", 2, "Different address family is allowed only for tunneling servers"),
    ("-a -f 1 -6 -r 10.1.0.1 -g", 2, "Different address family is allowed only for tunneling servers"),
    ("--start-daemon bogus", 2, "illegal start-daemon parameter specified: `bogus'"),
    ("--stop-daemon bogus", 2, "illegal stop-daemon parameter specified: `bogus'"),
    ("--start-daemon master --syncid 256", 2, "illegal syncid specified"),
    ("--start-daemon master --sync-maxlen 65508", 2, "illegal sync-maxlen specified"),
    ("--start-daemon master --mcast-port 0", 2, "illegal mcast-port specified"),
    ("--start-daemon master --mcast-ttl 256", 2, "illegal mcast-ttl specified"),
    ("--start-daemon master --mcast-group 10.0.0.1", 2, "invalid IPv4 mcast-group `10.0.0.1'"),
    ("--start-daemon master --mcast-group fe80::1", 2, "invalid IPv6 mcast-group `fe80::1'"),
    ("--start-daemon master --mcast-interface averyverylongname", 255, "No such device: `averyverylongname'"),
    ("-L -c --stats", 2, "options conflicts in the list command: --stats is not for --connection"),
    ("-d -t 10.0.0.1:80 -r 10.1.0.1 -w 2", 2, "Illegal 'weight' option with the 'delete-server' command"),
];

#[test]
fn messages_and_statuses() {
    for &(line, code, begins) in MESSAGES {
        let mut asked = false;
        let (mut stdin, mut stdout, mut stderr) = (Cursor::new(b""), Vec::new(), Vec::new());
        let got = run(
            &words(line),
            &mut Io { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr },
            &NoNames,
            &mut |path| {
                asked = true;
                Err(ClientError::NotRunning { path: path.to_owned() })
            },
        );
        let stderr = String::from_utf8(stderr).unwrap();
        assert!(stderr.starts_with(begins) && stderr.lines().count() == 1, "{line}: {stderr}");
        assert_eq!((got, asked, stdout.len()), (code, false, 0), "{line}");
    }
}

#[test]
fn only_refusals_and_unknown_options_let_a_restore_go_on() {
    assert!(low("-A --bogus").unwrap_err().carries_on);
    assert!(meaning("-A -t 10.0.0.1:80 -s averyverylongname").unwrap_err().carries_on);
    assert!(!low("bogus").unwrap_err().carries_on);
    assert!(!low("-A -t 10.0.0.1:99999").unwrap_err().carries_on);
    assert_eq!(low("-A --bogus").unwrap_err().code, EXIT_REFUSED);
}

#[test]
fn services_mean() {
    let service = |line: &str| match meaning(line) {
        Ok(Command::AddService(s) | Command::EditService(s)) => s,
        other => panic!("{line}: {other:?}"),
    };
    let s = service("-A -t 10.0.0.1:80");
    assert_eq!(s.key, ServiceKey::Addr { protocol: TCP, addr: [10, 0, 0, 1].into(), port: 80 });
    assert_eq!((s.scheduler.as_str(), s.flags, s.flags_mask, s.timeout, s.pe_name), ("wlc", 0, !0, 0, None));
    assert_eq!(s.netmask, Netmask::V4(Ipv4Addr::BROADCAST));
    let s = service("-E -srr -p -u 10.0.0.1:0 -M 24 --pe sip -o -b flag-1,,flag-3,");
    assert_eq!(s.key, ServiceKey::Addr { protocol: UDP, addr: [10, 0, 0, 1].into(), port: 0 });
    assert_eq!((s.scheduler.as_str(), s.timeout, s.pe_name.as_deref()), ("rr", 360, Some("sip")));
    assert_eq!(s.flags, SVC_F_PERSISTENT | SVC_F_ONEPACKET | SVC_F_SCHED1 | SVC_F_SCHED3);
    assert_eq!(s.netmask, Netmask::V4(Ipv4Addr::new(0, 0, 0, 24)));
    let s = service("-A -b sh-port,sh-fallback -M 64 -p 1 -f 7 -6 -s sh");
    assert_eq!(s.flags, SVC_F_PERSISTENT | SVC_F_SCHED1 | SVC_F_SCHED2);
    assert_eq!((s.key.af(), s.netmask), (Af::V6, Netmask::V6(64)));
    assert_eq!(service("-A -t [2001:db8::1]:443").netmask, Netmask::V6(128));
    assert_eq!(service("-A -f 1 -o").flags, SVC_F_ONEPACKET);
}

#[test]
fn servers_mean() {
    let server = |line: &str| match meaning(line) {
        Ok(Command::AddServer(_, d) | Command::EditServer(_, d)) => d,
        other => panic!("{line}: {other:?}"),
    };
    let d = server("-a -r 10.1.0.1:8080 -t 10.0.0.1:80");
    assert_eq!((d.method, d.port, d.weight, d.upper, d.lower), (FwdMethod::Droute, 80, 1, 0, 0));
    assert_eq!(server("-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -i").port, 80);
    assert_eq!(server("-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m").port, 8080);
    assert_eq!(server("-a -t 10.0.0.1:80 -r 10.1.0.1 -m").port, 80);
    assert_eq!(server("-a -f 1 -r 10.1.0.1:8080 -g").port, 8080);
    assert_eq!(server("-a -f 1 -r 10.1.0.1").port, 0);
    let d = server("-e -t 10.0.0.1:80 -r 10.1.0.1 -m -w 2147483647 -x10 -y 5");
    assert_eq!((d.weight, d.upper, d.lower), (i32::MAX, 10, 5));
    let d = server("-a -t 10.0.0.1:80 -r 2001:db8::1 -i --tun-type gue --tun-port 6080 --tun-remcsum");
    assert_eq!((d.tunnel, d.port), (Tunnel { kind: 1, port: 6080, flags: 2 }, 80));
    let d = server("-a -t 10.0.0.1:80 -r 10.1.0.1 -i --tun-type gre --tun-csum");
    assert_eq!(d.tunnel, Tunnel { kind: 2, port: 0, flags: 1 });
    let deleted = meaning("-d -t 10.0.0.1:80 -r [2001:db8::1]:81").unwrap();
    assert!(matches!(deleted, Command::DeleteServer(_, addr, 81) if addr.is_ipv6()), "{deleted:?}");
    let deleted = meaning("-d -t 10.0.0.1:80 -r 10.1.0.1").unwrap();
    assert!(matches!(deleted, Command::DeleteServer(_, _, 80)), "{deleted:?}");
}

#[test]
fn listings_mean() {
    let view = |line: &str| match meaning(line) {
        Ok(Command::List(None, format)) => format.view,
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(view(""), View::Plain);
    assert_eq!(view("-L --rate --stats"), View::Stats);
    assert_eq!(view("-l --thresholds --rate"), View::Rate);
    assert_eq!(view("-L --tun-info --persistent-conn --thresholds"), View::Thresholds);
    assert_eq!(view("-L --tun-info --persistent-conn"), View::PersistentConn);
    assert_eq!(view("-L --tun-info --sort"), View::TunInfo);
    let Ok(Command::List(Some(_), format)) = meaning("-Ln -t 10.0.0.1:80 -X --nosort") else { panic!() };
    assert!(format.numeric && format.exact && !format.sort);
    assert!(matches!(meaning("-Lc --persistent-conn -X"), Ok(Command::ListConns { pe: true, .. })));
    assert!(matches!(meaning("-L --timeout -n"), Ok(Command::ListTimeouts)));
    assert!(matches!(meaning("-Sn"), Ok(Command::Save(f)) if f.numeric && f.sort));
    assert!(
        matches!(meaning("--set 0 +5 007"), Ok(Command::SetTimeouts(t)) if (t.tcp, t.tcp_fin, t.udp) == (0, 5, 7))
    );
}

#[test]
fn daemons_mean() {
    let Ok(Command::StartDaemon(d)) = meaning("--start-daemon=backup") else { panic!() };
    assert_eq!((d.state, d.interface.as_str(), d.sync_id), (DaemonState::Backup, "eth0", 0));
    assert_eq!((d.maxlen, d.group, d.port, d.ttl), (0, None, 0, 0));
    let line = "--start-daemon master --mcast-interface d0 --syncid 7 --sync-maxlen 1400 --mcast-group ff05::99 \
                --mcast-port 9999 --mcast-ttl 3";
    let Ok(Command::StartDaemon(d)) = meaning(line) else { panic!() };
    assert_eq!((d.state, d.interface.as_str(), d.sync_id), (DaemonState::Master, "d0", 7));
    assert_eq!((d.maxlen, d.group, d.port, d.ttl), (1400, "ff05::99".parse().ok(), 9999, 3));
    assert!(matches!(
        meaning("--stop-daemon master --syncid 5"),
        Ok(Command::StopDaemon(DaemonState::Master))
    ));
}

#[test]
fn no_daemon_is_one_line_and_status_2() {
    let (mut stdin, mut stdout, mut stderr) =
        (Cursor::new(b"-A -t 10.0.0.1:80\n-C\n"), Vec::new(), Vec::new());
    let mut io = Io { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
    for line in ["--socket /nowhere/s -R", "--socket=/nowhere/s -L", "--socket /nowhere/s status"] {
        let code = run(&words(line), &mut io, &NoNames, &mut |path| {
            Err(ClientError::NotRunning { path: path.to_owned() })
        });
        assert_eq!(code, 2);
    }
    assert_eq!(stdout, b"");
    let stderr = String::from_utf8(stderr).unwrap();
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 3, "{stderr}");
    assert!(lines.iter().all(|l| l.contains("/nowhere/s")), "{stderr}");
}
