//! The daemon as a process: start, errors of the start, signals. Only with `--control-only`, which needs no privilege.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ipvs_netlink::{Client, Request, Saved, parse_line};
use rustix::process::{Pid, Signal, geteuid, kill_process};

const LONG: Duration = Duration::from_secs(20);

/// A directory that is removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static N: AtomicU32 = AtomicU32::new(0);
        let n = N.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lvsd-daemon-{}-{n}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A daemon that does not outlive its test.
struct Daemon {
    child: Child,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    fn command(args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lvsd"));
        command.args(args).env_remove("RUST_LOG").env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn spawn(command: &mut Command) -> Self {
        Self { child: command.spawn().unwrap() }
    }

    /// Starts one and waits until it serves.
    fn start(args: &[&str], socket: &Path) -> Self {
        let mut daemon = Self::spawn(&mut Self::command(args));
        let end = Instant::now() + LONG;
        while Client::connect(socket, LONG).is_err() {
            if let Some(status) = daemon.child.try_wait().unwrap() {
                panic!("{status}: {}", daemon.stderr());
            }
            assert!(Instant::now() < end, "not ready");
            thread::sleep(Duration::from_millis(5));
        }
        daemon
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn stderr(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    fn end(mut self) -> (ExitStatus, String) {
        let end = Instant::now() + LONG;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let stderr = self.stderr();
                return (status, stderr);
            }
            assert!(Instant::now() < end, "still running");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A start that must fail: with this status and one line.
fn refused(command: &mut Command, status: i32) -> String {
    let (ended, stderr) = Daemon::spawn(command).end();
    assert_eq!(ended.code(), Some(status), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("lvsd: "), "{stderr}");
    stderr
}

fn add(socket: &Path, line: &str) {
    let mut client = Client::connect(socket, LONG).unwrap();
    let request = match parse_line(line).unwrap() {
        Saved::Service(s) => Request::NewService(s),
        Saved::Dest(key, d) => Request::NewDest(key, d),
        other => panic!("{other:?}"),
    };
    client.request(&request).unwrap();
}

fn services(socket: &Path) -> usize {
    Client::connect(socket, LONG).unwrap().request(&Request::DumpServices).unwrap().len()
}

#[test]
fn a_signal_stops_it_in_order_and_the_state_comes_back() {
    let dir = Dir::new();
    let (socket, state) = (dir.file("s"), dir.file("state"));
    let args =
        ["--control-only", "--socket", socket.to_str().unwrap(), "--state-file", state.to_str().unwrap()];
    for (signal, name, before) in [(Signal::TERM, "SIGTERM", 0), (Signal::INT, "SIGINT", 1)] {
        let daemon = Daemon::start(&args, &socket);
        assert_eq!(services(&socket), before);
        let port = 80 + before;
        add(&socket, &format!("-A -t 10.0.0.1:{port} -s rr"));
        add(&socket, &format!("-a -t 10.0.0.1:{port} -r 10.1.0.1:80 -m -w 3"));
        daemon.signal(signal);
        let (status, stderr) = daemon.end();
        assert!(status.success(), "{stderr}");
        assert!(stderr.contains(name), "{stderr}");
        assert!(!socket.exists(), "the socket is removed");
    }
    let text = fs::read_to_string(&state).unwrap();
    assert!(text.contains("-a -t 10.0.0.1:81 -r 10.1.0.1:80 -m -w 3\n"), "{text}");
}

#[test]
fn after_a_kill_it_starts_again_and_a_second_one_does_not_start() {
    let dir = Dir::new();
    let socket = dir.file("s");
    let args = ["--control-only", "--socket", socket.to_str().unwrap()];
    let daemon = Daemon::start(&args, &socket);
    let e = refused(&mut Daemon::command(&args), 1);
    assert!(e.contains("another lvsd is running") && e.contains(socket.to_str().unwrap()), "{e}");
    assert_eq!(services(&socket), 0, "the first is not disturbed");
    daemon.signal(Signal::KILL);
    let (status, _) = daemon.end();
    assert_eq!(status.signal(), Some(9));
    assert!(socket.exists());
    let daemon = Daemon::start(&args, &socket);
    daemon.signal(Signal::TERM);
    assert!(daemon.end().0.success());
}

#[test]
fn two_daemons_do_not_share_a_state_file() {
    let dir = Dir::new();
    let (one, two, state) = (dir.file("one"), dir.file("two"), dir.file("state"));
    fn args<'a>(socket: &'a Path, state: &'a Path) -> [&'a str; 5] {
        ["--control-only", "--socket", socket.to_str().unwrap(), "--state-file", state.to_str().unwrap()]
    }
    let first = Daemon::start(&args(&one, &state), &one);
    let e = refused(&mut Daemon::command(&args(&two, &state)), 1);
    let owner = format!("another lvsd (process {}) keeps its state there", first.child.id());
    assert!(e.contains(state.to_str().unwrap()) && e.contains(&owner), "{e}");
    assert!(!two.exists());
    // A killed one is in nobody's way.
    first.signal(Signal::KILL);
    first.end();
    let second = Daemon::start(&args(&two, &state), &two);
    second.signal(Signal::TERM);
    assert!(second.end().0.success());
    assert!(!dir.file("state.lock").exists());
}

#[test]
fn errors_of_the_start_are_one_line_and_change_nothing() {
    let dir = Dir::new();
    let socket = dir.file("s");
    let name = socket.to_str().unwrap();
    let e = refused(&mut Daemon::command(&["--control-only", "--socket", name, "--interface", "nosuch0"]), 1);
    assert!(e.contains("--interface nosuch0: no such interface"), "{e}");
    // The command line's own fault: the same status as for what clap finds.
    for (words, says) in [
        (&["--datapath", "nfqueue"][..], "--datapath nfqueue: not available in this version"),
        (&["--xdp-mode", "native"], "--xdp-mode is for --datapath afxdp or xdp; it is auto"),
        (
            &["--busy-poll", "9", "--datapath", "afpacket"],
            "--busy-poll is for --datapath afxdp or xdp; it is afpacket",
        ),
        (
            &["--xdp-mode", "generic", "--datapath", "xdp"],
            "--xdp-mode generic: --datapath xdp forwards where XDP runs in the driver only; use --datapath tc",
        ),
        (&["--control-only", "--interface", "lo", "--interface", "lo"], "--interface lo: given twice"),
    ] {
        let e = refused(&mut Daemon::command(&[&["--socket", name], words].concat()), 2);
        assert!(e.contains(says), "{e}");
    }
    let e = refused(&mut Daemon::command(&["--socket", name, "--max-connections", "0"]), 2);
    assert!(e.contains("'0' for '--max-connections <N>': not a whole number from 1 to 67108864"), "{e}");
    let state = dir.file("state");
    fs::write(&state, "-A -t 10.0.0.1:80\n").unwrap();
    let args = ["--control-only", "--socket", name, "--state-file", state.to_str().unwrap()];
    let e = refused(&mut Daemon::command(&args), 1);
    assert!(e.contains("line 1: '-s' is missing"), "{e}");
    fs::write(&state, "-A -t 1.1.1.1:80 -s rr\n-a -t 1.1.1.1:80 -r 2.2.2.2 -m\n").unwrap();
    let e = refused(&mut Daemon::command(&args), 1);
    let (path, says) = (state.to_str().unwrap(), "its port is missing (2.2.2.2:PORT); mend");
    assert!(e.contains(&format!("--state-file {path}, line 2: ")) && e.contains(says), "{e}");
    fs::write(&state, b"-A -t 1.1.1.1:80 -s rr\n\xff\n").unwrap();
    let e = refused(&mut Daemon::command(&args), 1);
    assert!(e.contains(&format!("--state-file {path}: byte 23 (from 0) is no UTF-8 text")), "{e}");
    let left: Vec<_> = fs::read_dir(&dir.0).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert_eq!(left, ["state"]);
}

#[test]
fn without_privilege_the_missing_capabilities_are_named() {
    let dir = Dir::new();
    // A copy that any user may run.
    let program = dir.file("lvsd");
    fs::copy(env!("CARGO_BIN_EXE_lvsd"), &program).unwrap();
    let mut command = Command::new(&program);
    command.args(["--socket", dir.file("s").to_str().unwrap()]);
    command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    if geteuid().is_root() {
        command.uid(65534).gid(65534);
    }
    let e = refused(&mut command, 1);
    assert!(e.contains("missing CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF, CAP_PERFMON: run lvsd as root"), "{e}");
}

#[test]
fn a_service_manager_is_told() {
    let dir = Dir::new();
    let socket = dir.file("s");
    let manager = UnixDatagram::bind(dir.file("notify")).unwrap();
    manager.set_read_timeout(Some(LONG)).unwrap();
    let args = ["--control-only", "--socket", socket.to_str().unwrap()];
    let daemon = Daemon::spawn(Daemon::command(&args).env("NOTIFY_SOCKET", dir.file("notify")));
    let mut buf = [0; 64];
    let len = manager.recv(&mut buf).unwrap();
    assert_eq!(&buf[..len], b"READY=1");
    assert_eq!(services(&socket), 0, "it is ready indeed");
    daemon.signal(Signal::TERM);
    let len = manager.recv(&mut buf).unwrap();
    assert_eq!(&buf[..len], b"STOPPING=1");
    assert!(daemon.end().0.success());
}

#[test]
fn errors_of_a_replay_are_one_line_and_write_nothing() {
    let dir = Dir::new();
    let (config, input, output) = (dir.file("config"), dir.file("in.pcap"), dir.file("out.pcap"));
    let run = |args: &[&str], status| refused(&mut Daemon::command(&[&["replay"], args].concat()), status);
    let [c, i, o] = [&config, &input, &output].map(|p| p.to_str().unwrap());
    let e = run(&["--config", c, "--inn", i, "--out", o], 2);
    assert!(e.contains("unexpected argument '--inn' found; a similar argument exists: '--in'"), "{e}");
    let e = run(&["--config", c, "--in", i], 2);
    assert!(e.contains("--out <OUT.pcap>"), "{e}");
    let e = run(&["--config", c, "--in", i, "--out", o], 1);
    assert!(e.contains(c) && e.contains("No such file"), "{e}");
    fs::write(&config, "interface c0 02:00:00:00:00:d0\n-A -t 10.0.0.1:80 -s nosuch\n").unwrap();
    let e = run(&["--config", c, "--in", i, "--out", o], 1);
    let says = format!("{c}: line 2: there is no scheduler 'nosuch' in this version, but rr ");
    assert!(e.contains(&says) && e.contains("maglev"), "{e}");
    fs::write(&config, b"interface c0 \x80").unwrap();
    let e = run(&["--config", c, "--in", i, "--out", o], 1);
    assert!(e.contains(&format!("{c}: byte 13 (from 0) is no UTF-8 text")), "{e}");
    fs::write(&config, "interface c0 02:00:00:00:00:d0\n").unwrap();
    fs::write(&input, "plain text, and no packets in it").unwrap();
    let e = run(&["--config", c, "--in", i, "--out", o], 1);
    assert!(e.contains(&format!("{i}: not a capture in pcap format (it begins otherwise)")), "{e}");
    assert!(!output.exists());
    // The same file for both would be emptied before it is read.
    let header = [&[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0][..], &[0; 8], &[0, 0, 4, 0, 1, 0, 0, 0]].concat();
    fs::write(&input, &header).unwrap();
    let e = run(&["--config", c, "--in", i, "--out", i], 1);
    assert!(e.contains("--in and --out are the same file"), "{e}");
    assert_eq!(fs::read(&input).unwrap(), header);
}

#[test]
fn a_saved_scheduler_that_is_not_there_is_named_with_its_line() {
    let dir = Dir::new();
    let (socket, state) = (dir.file("s"), dir.file("state"));
    fs::write(&state, "# saved\n-A -t 10.0.0.1:80 -s rr\n-A -t 10.0.0.1:81 -s nosuch\n").unwrap();
    let [s, p] = [&socket, &state].map(|p| p.to_str().unwrap());
    let e = refused(&mut Daemon::command(&["--control-only", "--socket", s, "--state-file", p]), 1);
    let says =
        format!("--state-file {p}, line 3: '-A -t 10.0.0.1:81 -s nosuch': there is no scheduler 'nosuch'");
    assert!(e.contains(&says) && e.contains("but rr wrr lc wlc sed nq fo ovf sh dh mh maglev;"), "{e}");
}

#[test]
fn interfaces_are_looked_for_and_not_served_without_a_data_path() {
    let dir = Dir::new();
    let socket = dir.file("s");
    let args = ["--control-only", "--interface", "lo", "--socket", socket.to_str().unwrap()];
    let daemon = Daemon::start(&args, &socket);
    daemon.signal(Signal::TERM);
    let (status, stderr) = daemon.end();
    assert!(
        status.success() && stderr.contains("ready: control socket only, nothing on lo; socket"),
        "{stderr}"
    );
}
