//! Lines of a saved state.

use proptest::prelude::*;

use super::strategies;
use crate::*;

/// As `ipvsadm -S -n` of version 1.31 printed them.
const LINES: &[&str] = &[
    "-A -t 10.0.0.1:80 -s wlc",
    "-A -t [2001:db8::1]:0 -s rr -p 300",
    "-A -t [2001:db8::1]:80 -s rr -p 300 -M 64",
    "-A -u 10.0.0.1:53 -s rr -p 600 -M 255.255.255.0",
    "-A -u 10.0.0.1:5060 -s rr -p 60 --pe sip -o",
    "-A --sctp-service [2001:db8::1]:2905 -s rr",
    "-A -f 7 -s lc",
    "-A -f 8 -6 -s lc",
    "-A -f -1 -s lc",
    "-A -f 3 -6 -s rr -p 30 -M 48",
    "-A -f 9 -s sh -b sh-port",
    "-A -t 10.0.0.1:3 -s sh -b sh-fallback,sh-port",
    "-A -t 10.0.0.1:6 -s mh -b mh-fallback,mh-port",
    "-A -t 10.0.0.1:8 -s rr -b flag-1,flag-2,flag-3",
    "-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 5",
    "-a -t 10.0.0.1:80 -r 10.1.0.3:0 -g -w 2147483647",
    "-a -t 10.0.0.1:80 -r [2001:db8:1::1]:80 -i -w 1 --tun-type ipip",
    "-a -t 10.0.0.1:80 -r 10.1.0.2:80 -i -w 2 --tun-type gue --tun-port 5555 --tun-nocsum",
    "-a -t 10.0.0.1:80 -r 10.1.0.6:80 -i -w 1 --tun-type gue --tun-port 6080 --tun-csum",
    "-a -t 10.0.0.1:80 -r 10.1.0.7:80 -i -w 1 --tun-type gue --tun-port 6080 --tun-remcsum",
    "-a -f 8 -6 -r [2001:db8:1::3]:80 -i -w 1 --tun-type gre --tun-csum",
    "-a -t [2001:db8::1]:80 -r [2001:db8:1::3]:80 -i -w 0 --tun-type gre --tun-nocsum",
];

fn print(saved: &Saved) -> String {
    match saved {
        Saved::Nothing => String::new(),
        Saved::Service(s) => save_line(s),
        Saved::Dest(key, d) => save_line_dest(key, d) + &save_thresholds(d),
        Saved::Timeouts(t) => save_line_timeouts(t),
        Saved::Daemon(d) => save_line_daemon(d),
        Saved::Sysctl(s) => save_line_sysctl(s),
    }
}

#[test]
fn lines_of_ipvsadm_are_read_and_printed() {
    for line in LINES {
        let saved = parse_line(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert_eq!(print(&saved), *line);
    }
}

#[test]
fn our_own_lines_are_read_and_printed() {
    for line in [
        "",
        "-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 5 -x 100 -y 50",
        "--set 900 120 300",
        "--start-daemon backup --mcast-interface d0 --syncid 3 --sync-maxlen 1024 --mcast-group ff05::1 --mcast-port 9999 --mcast-ttl 4",
        "#sysctl sync_threshold 3\t50",
    ] {
        assert_eq!(print(&parse_line(line).unwrap()), line);
    }
    assert_eq!(parse_line(" # a remark"), Ok(Saved::Nothing));
}

#[test]
fn errors_name_word_and_option() {
    let error = |line: &str| parse_line(line).unwrap_err().to_string();
    assert_eq!(error("-X"), "'-X' is no command of a saved state (-A, -a, --set, --start-daemon)");
    assert_eq!(error("-A -s rr"), "'service' is missing");
    assert_eq!(error("-A -t 10.0.0.1:80"), "'-s' is missing");
    assert_eq!(error("-A -t www:80 -s rr"), "'www:80' is no value for '-t'");
    for (line, says) in [
        (
            "-a -t 1.1.1.1:80 -r 2.2.2.2 -m",
            "'2.2.2.2' is no value for '-r': its port is missing (2.2.2.2:PORT)",
        ),
        ("-A -u 1.1.1.1 -s rr", "'1.1.1.1' is no value for '-u': its port is missing (1.1.1.1:PORT)"),
        ("-A -t ::1 -s rr", "'[::1]' is no value for '-t': its port is missing ([::1]:PORT)"),
        ("-A -t [::1] -s rr", "'[::1]' is no value for '-t': its port is missing ([::1]:PORT)"),
        ("-A -t [::1]:x -s rr", "'[::1]:x' is no value for '-t'"),
    ] {
        assert_eq!(error(line), says);
    }
    assert_eq!(error("-A -f 0 -s rr"), "'0' is no value for '-f'");
    assert_eq!(error("-A -t 10.0.0.1:80 -f 1 -s rr"), "the option '-f' does not belong here");
    assert_eq!(error("-A -t 10.0.0.1:80 -s rr -p"), "the option '-p' needs a value");
    assert_eq!(error("-A -t 10.0.0.1:80 -s sh -b nosuch"), "'nosuch' is no value for '-b'");
    assert_eq!(error("-A -t [::1]:80 -s rr -p 1 -M 300"), "'300' is no value for '-M'");
    assert_eq!(error("-a -t 10.0.0.1:80 -m"), "'-r' is missing");
    assert_eq!(error("-a -t 10.0.0.1:80 -r 10.0.0.2:80 -w x"), "'x' is no value for '-w'");
    assert_eq!(error("--set 1 2"), "the option '--set' needs a value");
    assert_eq!(error("--set 1 2 3 4"), "the option '4' does not belong here");
    assert_eq!(error("#sysctl x"), "the option '#sysctl' needs a value");
}

proptest! {
    /// What a saved state keeps of a service comes back.
    #[test]
    fn services(mut s in strategies::service()) {
        if let ServiceKey::Addr { protocol, .. } = &mut s.key {
            *protocol = [6, 17, 132][usize::from(*protocol) % 3];
        }
        s.flags &= 0x3d;
        s.flags_mask = !0;
        if s.flags & SVC_F_PERSISTENT == 0 {
            s.timeout = 0;
            s.netmask = wire::host_mask(s.key.af());
        }
        prop_assert_eq!(parse_line(&save_line(&s)), Ok(Saved::Service(s)));
    }

    #[test]
    fn dests(key in strategies::key(), mut d in strategies::dest()) {
        let ServiceKey::Fwmark { .. } = key else { return Ok(()) };
        d.method = match d.method {
            FwdMethod::Tunnel | FwdMethod::Droute => d.method,
            _ => FwdMethod::Masq,
        };
        d.tunnel.kind %= 3;
        d.tunnel.flags %= 3;
        match (d.method, d.tunnel.kind) {
            (FwdMethod::Tunnel, 1) => {}
            (FwdMethod::Tunnel, 2) => d.tunnel.port = 0,
            _ => d.tunnel = Tunnel::default(),
        }
        let line = save_line_dest(&key, &d) + &save_thresholds(&d);
        prop_assert_eq!(parse_line(&line), Ok(Saved::Dest(key, d)));
    }

    #[test]
    fn noise_is_never_a_panic(words in proptest::collection::vec("-A|-a|-t|-f|-6|-r|-s|-p|-M|-b|-o|--set|--start-daemon|[0-9.:\\[\\]-]{0,12}|\\PC{0,4}", 0..12)) {
        let _ = parse_line(&words.join(" "));
    }
}
