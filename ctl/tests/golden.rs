//! lvsctl against the transcript of ipvsadm, and field cases of the command line.

mod transcript;

use ipvs_netlink::memory::Memory;
use ipvs_netlink::{
    Backend, ConnEntry, Counter, DestEntry, Notice, Overview, QueueStatus, ServiceKey, Stats,
};
use transcript::{Outcome, Shell, replay};

const TRANSCRIPT: &str = include_str!("../../tests/golden/a-cli.txt");

#[test]
fn transcript_is_reproduced() {
    let memory = Memory::default();
    let replayed = replay(TRANSCRIPT, &mut Shell::over(&memory));
    assert!(replayed > 370, "only {replayed} commands");
}

/// A table with everything that `-S` can say.
const TABLE: &str = "\
-A -t 10.0.0.1:80 -s wrr -p 360 -M 255.255.255.0
-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 3
-a -t 10.0.0.1:80 -r 10.1.0.2:80 -g -w 0
-a -t 10.0.0.1:80 -r 10.1.0.3:80 -i -w 2 --tun-type ipip
-a -t 10.0.0.1:80 -r 10.1.0.4:80 -i -w 2 --tun-type gre --tun-csum
-a -t 10.0.0.1:80 -r 10.1.0.5:80 -i -w 2 --tun-type gue --tun-port 5555 --tun-remcsum
-A -u 10.0.0.1:53 -s sh -o -b sh-fallback,sh-port
-A -u 10.0.0.1:5060 -s rr -p 60 --pe sip
-A --sctp-service 10.0.0.1:2905 -s rr
-A -t [2001:db8::1]:443 -s mh -p 5 -M 64 -b mh-fallback,mh-port
-a -t [2001:db8::1]:443 -r [2001:db8:1::1]:8443 -m -w 1
-A -f 9 -s wlc -b flag-1,flag-3
-a -f 9 -r 10.1.0.3:0 -g -w 1
-A -f 9 -6 -s wlc
";

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn ask(shell: &Shell<'_>, line: &str, stdin: &str) -> Outcome {
    shell.lvsctl(&words(line), stdin)
}

fn good(shell: &Shell<'_>, line: &str, stdin: &str) -> String {
    let outcome = ask(shell, line, stdin);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{line}");
    outcome.stdout
}

#[test]
fn case_46_saved_tables_are_restored_and_duplicates_change_nothing() {
    let memory = Memory::default();
    let shell = Shell::over(&memory);
    good(&shell, "-R", TABLE);
    assert_eq!(good(&shell, "-S -n", ""), TABLE);
    good(&shell, "-C", "");
    assert_eq!(good(&shell, "-S -n", ""), "");
    good(&shell, "-R", TABLE);
    assert_eq!(good(&shell, "-Sn", ""), TABLE);

    let key = ServiceKey::Addr { protocol: 6, addr: [10, 0, 0, 1].into(), port: 80 };
    let stats = Stats { conns: 70_000, in_bytes: 5_368_709_121, ..Stats::default() };
    memory.set_service_stats(&key, stats).unwrap();
    let again = ask(&shell, "-R", TABLE);
    assert_eq!(again.code, 255);
    let errors: Vec<&str> = again.stderr.lines().collect();
    assert_eq!(errors.len(), TABLE.lines().count());
    assert!(errors[0].starts_with("line 1: Service already exists"), "{errors:?}");
    assert!(errors[1].starts_with("line 2: Destination already exists"), "{errors:?}");
    assert_eq!(good(&shell, "-Sn", ""), TABLE);
    assert_eq!(memory.service(&key).unwrap().stats, stats);
}

#[test]
fn case_46_odd_lines() {
    let memory = Memory::default();
    let shell = Shell::over(&memory);
    // Names, CRLF, blank lines, blanks around, the program's name; a server before its service fails by itself.
    let odd = "\r\n   \nipvsadm -A -t localhost:http -s rr\r\n  -a -t 10.0.0.1:81 -r 10.1.0.1 -m\t\n\
               \t-A  -t 10.0.0.1:81  \n-A -t 10.0.0.1:82 --bogus\nlvsctl -A -t 10.0.0.1:83";
    let outcome = ask(&shell, "-R", odd);
    let errors: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(outcome.code, 0, "the last line's status");
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].starts_with("line 4: Service not defined: TCP 10.0.0.1:81"), "{errors:?}");
    assert!(errors[1].starts_with("line 6: --bogus: unknown option"), "{errors:?}");
    let table = "-A -t 10.0.0.1:81 -s wlc\n-A -t 10.0.0.1:83 -s wlc\n-A -t 127.0.0.1:80 -s rr\n";
    assert_eq!(good(&shell, "-Sn", ""), table);

    // ipvsadm ends at these, so what follows is not carried out.
    for (stop, code, message) in [
        ("# comment", 255, "line 2: #: unknown command; try `lvsctl -h'"),
        ("-R", 255, "line 2: -R: not within a restore"),
        ("ipvsadm", 255, "line 2: no command: try `lvsctl -h'"),
        ("-A -t 10.0.0.1:84 -w 1", 2, "line 2: Illegal 'weight' option"),
        ("-A -t 10.0.0.1:99999", 2, "line 2: illegal virtual server"),
        ("-h", 0, ""),
    ] {
        good(&shell, "-C", "");
        let outcome = ask(&shell, "-R", &format!("-A -t 10.0.0.1:85\n{stop}\n-A -t 10.0.0.1:86\n"));
        assert_eq!(outcome.code, code, "{stop}");
        assert!(outcome.stderr.starts_with(message), "{stop}: {}", outcome.stderr);
        assert_eq!(good(&shell, "-Sn", ""), "-A -t 10.0.0.1:85 -s wlc\n", "{stop}");
    }
    let outcome = ask(&shell, "-R", &"x".repeat(70_000));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (2, "line 1: longer than 65536 bytes\n"));
    // Listings work within a restore, as in ipvsadm.
    assert_eq!(
        good(&shell, "-R", "-S -n\n-L --timeout\n"),
        "-A -t 10.0.0.1:85 -s wlc\nTimeout (tcp tcpfin udp): 900 120 300\n"
    );
}

#[test]
fn case_48_timeouts() {
    let memory = Memory::default();
    let shell = Shell::over(&memory);
    good(&shell, "--set 0 0 1", "");
    assert_eq!(good(&shell, "-L --timeout", ""), "Timeout (tcp tcpfin udp): 900 120 1\n");
    for (line, code) in
        [("--set 1 2", 2), ("--set -1 0 0", 255), ("--set 2678401 0 0", 2), ("--set 1 2 3 4", 2)]
    {
        let outcome = ask(&shell, line, "");
        assert_eq!((outcome.code, outcome.stderr.lines().count()), (code, 1), "{line}");
    }
    assert_eq!(good(&shell, "-L --timeout", ""), "Timeout (tcp tcpfin udp): 900 120 1\n");
}

#[test]
fn case_49_direct_routing_keeps_the_service_port() {
    let memory = Memory::default();
    let shell = Shell::over(&memory);
    good(&shell, "-A -t 192.0.2.10:80 -s rr", "");
    good(&shell, "-a -t 192.0.2.10:80 -r 10.0.0.11:8080 -g", "");
    let outcome = ask(&shell, "-a -t 192.0.2.10:80 -r 10.0.0.11:8081 -g", "");
    assert_eq!(outcome.code, 255);
    assert_eq!(outcome.stderr, "Destination already exists: 10.0.0.11:80 of TCP 192.0.2.10:80\n");
    good(&shell, "-e -t 192.0.2.10:80 -r 10.0.0.11 -i -w 9", "");
    let rules = |shell| good(shell, "-Sn", "").lines().last().unwrap_or_default().to_owned();
    assert_eq!(rules(&shell), "-a -t 192.0.2.10:80 -r 10.0.0.11:80 -i -w 9 --tun-type ipip");
    good(&shell, "-e -t 192.0.2.10:80 -r 10.0.0.11 -w 5", "");
    assert_eq!(rules(&shell), "-a -t 192.0.2.10:80 -r 10.0.0.11:80 -g -w 5");
}

#[test]
fn case_53_what_is_unknown_is_named() {
    let memory = Memory::default();
    let shell = Shell::over(&memory);
    good(&shell, "-A -t 192.0.2.10:81 -s rr", "");
    for (line, code, message) in [
        (
            "-A -t 192.0.2.10:80 -s foo",
            255,
            "Scheduler or persistence engine not found: scheduler `foo'; this daemon has rr wrr lc wlc lblc lblcr dh sh \
             sed nq fo ovf mh twos\n",
        ),
        (
            "-A -t 192.0.2.10:80 -s rr -p --pe foo",
            255,
            "Scheduler or persistence engine not found: persistence engine `foo'\n",
        ),
        (
            "-A -t 192.0.2.10:80 -s rr -b sh-port",
            2,
            "incompatible scheduler flag `sh-port': the scheduler is rr\n",
        ),
        ("-E -t 192.0.2.10:80", 255, "No such service: TCP 192.0.2.10:80\n"),
        ("-D -f 7 -6", 255, "No such service: firewall mark 7, IPv6\n"),
        ("-L -f 7", 1, "No such service: firewall mark 7, IPv4\n"),
        (
            "-a -t 192.0.2.10:81 -r 10.0.0.1 -m -y 5",
            255,
            "Numerical result out of range: -y 5 is above -x 0\n",
        ),
        ("-d -t 192.0.2.10:81 -r 10.0.0.1", 255, "No such destination: 10.0.0.1:81 of TCP 192.0.2.10:81\n"),
    ] {
        let outcome = ask(&shell, line, "");
        assert_eq!(
            (outcome.code, outcome.stderr.as_str(), outcome.stdout.as_str()),
            (code, message, ""),
            "{line}"
        );
    }
    assert_eq!(good(&shell, "-Sn", ""), "-A -t 192.0.2.10:81 -s rr\n");
}

#[test]
fn counters_and_connections_are_listed() {
    let memory = Memory::default();
    let shell = Shell::over(&memory);
    good(&shell, "-A -t 10.0.0.1:80 -s rr", "");
    good(&shell, "-a -t 10.0.0.1:80 -r 10.1.0.1 -m", "");
    let key = ServiceKey::Addr { protocol: 6, addr: [10, 0, 0, 1].into(), port: 80 };
    let stats = Stats { conns: 70_000, in_bytes: 5_368_709_121, cps: 1000, ..Stats::default() };
    memory.set_service_stats(&key, stats).unwrap();
    let change = |d: &mut DestEntry| (d.active, d.persistent) = (70_000, 3);
    memory.change_dest(&key, [10, 1, 0, 1].into(), 80, change).unwrap();
    let body = |options: &str| {
        let all = good(&shell, &format!("-Ln {options} -t 10.0.0.1:80"), "");
        all.lines().skip(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        body("--stats --exact")[0],
        "TCP  10.0.0.1:80                     70000        0        0 5368709121        0"
    );
    assert_eq!(
        body("--rate")[0],
        "TCP  10.0.0.1:80                      1000        0        0        0        0"
    );
    assert_eq!(body("")[1], "  -> 10.1.0.1:80                  Masq    1      70000      0         ");
    assert_eq!(
        body("--persistent-conn")[1],
        "  -> 10.1.0.1:80                  1         3           70000      0         "
    );
    good(&shell, "-Z -t 10.0.0.1:80", "");
    assert_eq!(
        body("--stats")[0],
        "TCP  10.0.0.1:80                         0        0        0        0        0"
    );

    // More connections than fit into a datagram.
    let conn = |n: u16| ConnEntry {
        protocol: 6,
        client: ([10, 2, 0, 1].into(), n),
        virt: ([10, 0, 0, 1].into(), 80),
        dest: ([10, 1, 0, 1].into(), 80),
        state: "ESTABLISHED".to_owned(),
        expires: 899,
        flags: 0,
    };
    memory.set_conns((1..=1000).map(conn).collect());
    let listing = good(&shell, "-Lnc", "");
    assert_eq!(listing.lines().count(), 1002);
    assert!(
        listing.ends_with("TCP 14:59  ESTABLISHED 10.2.0.1:1000      10.0.0.1:80        10.1.0.1:80\n"),
        "{listing}"
    );
    assert!(good(&shell, "-L -c", "").contains(" 10.0.0.1:http      10.1.0.1:http\n"));
}

#[test]
fn subcommands() {
    let memory = Memory::default();
    let shell = Shell::over(&memory);
    let counter = |name: &str, value| Counter { name: name.to_owned(), value };
    let zero = counter("drop_no_destination", 0);
    memory.set_counters(vec![counter("rx_packets", 5), zero, counter("drop_no_route", u64::MAX)]);
    let overview = Overview { version: "9".into(), pid: 7, datapath: "none".into(), ..Overview::default() };
    let queue =
        QueueStatus { interface: "eth0".into(), datapath: "afpacket".into(), ..QueueStatus::default() };
    memory.set_status(overview, vec![queue], vec![Notice { text: "something is odd".into() }]);
    let status = good(&shell, "status", "");
    let lines: Vec<&str> = status.lines().collect();
    assert_eq!(lines[0], "lvsd 9, process 7, up 00:00:00");
    assert_eq!(lines[3], "notice: something is odd");
    assert!(lines[5].starts_with("eth0 0     afpacket absent "), "{status}");
    let counters = ["rx_packets 5", "drop_no_destination 0", "drop_no_route 18446744073709551615"];
    assert_eq!(lines[6..], counters);
    let nonzero = good(&shell, "status --nonzero", "");
    assert_eq!(nonzero, status.replace("drop_no_destination 0\n", ""));
    assert_eq!(good(&shell, "sysctl drop_entry", ""), "net.ipv4.vs.drop_entry = 0\n");
    let changed = good(&shell, "sysctl net.ipv4.vs.drop_entry=1 conntrack=0", "");
    assert_eq!(changed, "net.ipv4.vs.drop_entry = 1\nnet.ipv4.vs.conntrack = 0\n");
    assert!(good(&shell, "sysctl", "").lines().any(|l| l == "net.ipv4.vs.drop_entry = 1"));
    for (line, message) in [
        ("sysctl drop_entry=7", "net.ipv4.vs.drop_entry cannot be `7'\n"),
        ("sysctl bogus", "no setting `net.ipv4.vs.bogus'\n"),
        ("sysctl bogus=1", "no setting `net.ipv4.vs.bogus'\n"),
    ] {
        let outcome = ask(&shell, line, "");
        assert_eq!((outcome.code, outcome.stderr.as_str()), (1, message), "{line}");
    }
}

#[test]
fn the_manual_is_not_stale() {
    let committed = include_str!("../../man/lvsctl.8");
    assert!(
        committed == lvsctl::man::man_page(),
        "man/lvsctl.8 is stale: cargo run -p lvsctl --example man > man/lvsctl.8"
    );
}

#[test]
fn an_unknown_scheduler_is_told_what_there_is() {
    let memory = Memory::default();
    let shell = Shell::over(&memory);
    let outcome = ask(&shell, "-A -t 10.0.0.1:80 -s nosuch", "");
    assert_eq!(outcome.code, 255);
    let begins =
        "Scheduler or persistence engine not found: scheduler `nosuch'; this daemon has rr wrr lc wlc ";
    assert!(outcome.stderr.starts_with(begins) && outcome.stderr.lines().count() == 1, "{}", outcome.stderr);
    // Where the scheduler is there, it is the engine.
    let outcome = ask(&shell, "-A -t 10.0.0.1:80 -s rr -p --pe nosuch", "");
    assert_eq!(
        (outcome.code, outcome.stderr.as_str()),
        (255, "Scheduler or persistence engine not found: persistence engine `nosuch'\n")
    );
    good(&shell, "-A -t 10.0.0.1:80 -s rr", "");
    let outcome = ask(&shell, "-R", "-E -t 10.0.0.1:80 -s nosuch\n");
    assert!(
        outcome.stderr.starts_with("line 1: Scheduler") && outcome.stderr.contains("has rr"),
        "{outcome:?}"
    );
    let listed = good(&shell, "schedulers", "");
    assert!(listed.lines().any(|l| l.trim_end() == "wlc"), "{listed}");
}

#[test]
fn a_prefix_length_as_an_ipv4_mask_is_remarked_on() {
    let memory = Memory::default();
    let shell = Shell::over(&memory);
    let note = "note: -M 24 is the mask 0.0.0.24; for the networks of a /24 it is -M 255.255.255.0\n";
    let outcome = ask(&shell, "-A -t 10.0.0.1:80 -s rr -p -M 24", "");
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, note));
    assert_eq!(good(&shell, "-Sn", ""), "-A -t 10.0.0.1:80 -s rr -p 360 -M 0.0.0.24\n");
    let outcome = ask(&shell, "-R", "-E -t 10.0.0.1:80 -s rr -p 9 -M 24\n");
    assert_eq!((outcome.code, outcome.stderr), (0, format!("line 1: {note}")));
    for mask in ["255.255.255.0", "33", "0x18", "0"] {
        good(&shell, &format!("-E -t 10.0.0.1:80 -s rr -p 9 -M {mask}"), "");
    }
    good(&shell, "-A -t [2001:db8::1]:80 -s rr -p -M 24", "");
}

/// What a listing says as JSON.
fn json(shell: &Shell<'_>, line: &str) -> serde_json::Value {
    let text = good(shell, &format!("--json {line}"), "");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{line}: {e}: {text}"))
}

#[test]
fn listings_are_told_as_json() {
    let memory = Memory::default();
    let shell = Shell::over(&memory);
    assert_eq!(json(&shell, "-L")["services"], serde_json::json!([]), "nothing is a list, too");
    good(&shell, "-R", TABLE);
    good(&shell, "--start-daemon master --mcast-interface d0 --syncid 7", "");
    let key = ServiceKey::Addr { protocol: 6, addr: [10, 0, 0, 1].into(), port: 80 };
    memory.set_service_stats(&key, Stats { conns: 5, in_bytes: 1 << 60, ..Stats::default() }).unwrap();

    let all = json(&shell, "-L");
    assert_eq!((all["version"].as_str(), all["size"].as_u64()), (Some("1.2.1"), Some(4096)));
    let services = all["services"].as_array().unwrap();
    assert_eq!(services.len(), 7);
    let http = services.iter().find(|s| s["port"] == 80).unwrap();
    assert_eq!((http["protocol"].as_str(), http["address"].as_str()), (Some("TCP"), Some("10.0.0.1")));
    assert_eq!(http["persistence"]["timeout_seconds"], 360);
    assert_eq!(http["stats"]["in_bytes"].as_u64(), Some(1 << 60), "exact");
    let tunnel = &http["destinations"][4];
    assert_eq!((tunnel["method"].as_str(), tunnel["tunnel"]["type"].as_str()), (Some("tunnel"), Some("gue")));
    assert_eq!(
        (tunnel["tunnel"]["port"].as_u64(), tunnel["tunnel"]["remote_checksum"].as_bool()),
        (Some(5555), Some(true))
    );
    let mark = services.iter().find(|s| s["fwmark"] == 9 && s["family"] == "ipv4").unwrap();
    assert_eq!(mark["scheduler_flags"], serde_json::json!(["flag-1", "flag-3"]));
    assert_eq!(json(&shell, "-L -t 10.0.0.1:80")["services"][0], *http);
    assert_eq!(json(&shell, "-L --timeout")["tcp_fin_seconds"], 120);
    assert_eq!(json(&shell, "-L --daemon")["daemons"][0]["sync_id"], 7);
    assert_eq!(json(&shell, "-L -c")["connections"], serde_json::json!([]));
    assert!(json(&shell, "sysctl").as_object().unwrap().contains_key("expire_nodest_conn"));
    assert_eq!(json(&shell, "schedulers")["schedulers"].as_array().map(Vec::is_empty), Some(false));
    assert!(json(&shell, "status")["counters"].is_object());
    // what is no listing is not carried out
    for line in ["--json -S", "--json -C", "--json -A -t 10.0.0.9:1", "--json -h"] {
        let outcome = ask(&shell, line, "");
        assert_eq!(outcome.code, 2, "{line}");
        assert!(outcome.stderr.starts_with("--json is for listings"), "{}", outcome.stderr);
    }
    assert_eq!(good(&shell, "-Sn", ""), TABLE);
}

#[test]
fn a_restore_that_keeps_going_carries_out_all_that_can_be() {
    let memory = Memory::default();
    let shell = Shell::over(&memory);
    let lines = "# saved\n-A -t 10.0.0.1:80 -s rr\n-A -t 10.0.0.1:99999\n-a -t 10.0.0.9:80 -r 10.1.0.1\n\nbogus\n\
                 -a -t 10.0.0.1:80 -r 10.1.0.1 -m\n";
    let outcome = ask(&shell, "restore --keep-going", lines);
    let errors: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!((outcome.code, errors.len()), (2, 3), "the first failure's status: {errors:?}");
    for (error, begins) in
        errors.iter().zip(["line 3: illegal virtual", "line 4: Service not defined", "line 6: bogus"])
    {
        assert!(error.starts_with(begins), "{error}");
    }
    let table = "-A -t 10.0.0.1:80 -s rr\n-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1\n";
    assert_eq!(good(&shell, "-Sn", ""), table);
    // without it, it ends where ipvsadm does
    good(&shell, "-C", "");
    let outcome = ask(&shell, "restore", "-A -t 10.0.0.1:99999\n-A -t 10.0.0.2:80\n");
    assert_eq!((outcome.code, good(&shell, "-Sn", "").as_str()), (2, ""));
    good(&shell, "restore", table);
    assert_eq!(good(&shell, "-Sn", ""), table);
}
