//! Debian's unmodified `ipvsadm` under `lvsctl exec`: what it says and does with lvsd behind it is what it said and did with a kernel's
//! IPVS. With `--control-only`, in a network namespace of its own, which takes root.

#[path = "../ctl/tests/transcript/mod.rs"]
mod transcript;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ipvs_netlink::Client;
use transcript::Step;

const TRANSCRIPT: &str = include_str!("golden/a-cli.txt");
const LONG: Duration = Duration::from_secs(20);

/// A program beside the daemon's.
fn sibling(name: &str) -> PathBuf {
    let file = Path::new(env!("CARGO_BIN_EXE_lvsd")).with_file_name(name);
    assert!(file.exists(), "{} is not built: make test builds it", file.display());
    file
}

/// A network namespace with an interface `d0`, a daemon in it, and a directory.
struct Place {
    daemon: Child,
    dir: PathBuf,
    options: Vec<&'static str>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Place {
    fn new() -> Place {
        static N: AtomicU32 = AtomicU32::new(0);
        let n = N.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("lvsd-preload-{}-{n}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let mut place = Place { daemon: Place::holder(), dir, options: Vec::new() };
        place.start();
        place
    }

    /// A process that has the namespace before there is a daemon.
    fn holder() -> Child {
        let script =
            "ip link add d0 type veth peer name d1 && ip link set lo up && echo ready && exec sleep infinity";
        let mut c = Command::new("unshare");
        c.args(["--net", "setpriv", "--pdeathsig", "KILL", "sh", "-c", script]);
        let mut child = c.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        child
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("sock")
    }

    /// A command in the namespace and in the directory.
    fn command(&self, program: &Path) -> Command {
        let mut c = Command::new("nsenter");
        c.arg(format!("--net=/proc/{}/ns/net", self.daemon.id())).arg("--").arg(program);
        c.current_dir(&self.dir).env("LANG", "C").stdin(Stdio::null());
        c
    }

    /// Puts a daemon in the place of whatever holds the namespace.
    fn start(&mut self) {
        let mut c = self.command(Path::new("setpriv"));
        c.args(["--pdeathsig", "KILL"]).arg(env!("CARGO_BIN_EXE_lvsd"));
        c.args(["--control-only", "--socket"]).arg(self.socket()).args(&self.options);
        let next = c.stderr(Stdio::null()).spawn().unwrap();
        let mut before = std::mem::replace(&mut self.daemon, next);
        let end = Instant::now() + LONG;
        while Client::connect(self.socket(), LONG).is_err() {
            assert!(self.daemon.try_wait().unwrap().is_none() && Instant::now() < end, "no daemon");
            std::thread::sleep(Duration::from_millis(5));
        }
        before.kill().unwrap();
        before.wait().unwrap();
    }

    /// Runs a program under the library.
    fn exec(&self, words: &[&str]) -> Output {
        let mut c = self.command(&sibling("lvsctl"));
        c.arg("--socket").arg(self.socket()).args(["exec", "--"]).args(words);
        c.output().unwrap()
    }

    fn sh(&self, line: &str) -> (String, String, i32) {
        let out = self.exec(&["sh", "-c", line]);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (text(&out.stdout), text(&out.stderr), out.status.code().unwrap_or(-1))
    }
}

/// Whether tests cannot run here, which with `CI=true` is a failure.
fn cannot() -> bool {
    let why = if !rustix::process::geteuid().is_root() {
        "a network namespace needs root"
    } else if Command::new("ipvsadm").arg("-h").output().is_err() {
        "ipvsadm is not installed (scripts/setup)"
    } else {
        return false;
    };
    assert!(std::env::var("CI").is_ok_and(|v| v != "true") || std::env::var("CI").is_err(), "{why}");
    println!("SKIP: {why}");
    true
}

/// What this version of the daemon does not have yet is asked for by the name of something that it has, and told so.
fn without_what_is_to_come(text: &str) -> String {
    text.replace(" lblcr", " wlc").replace(" lblc", " wlc").replace(" --pe sip", "").replace(" pe sip", "")
}

/// A listing with its services in an order of their own: the kernel's is that of its hash table.
fn sorted(listing: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    for line in listing.lines() {
        match blocks.last_mut().filter(|_| line.starts_with("  ->")) {
            Some(block) => block.push_str(line),
            None => blocks.push(line.to_owned()),
        }
    }
    blocks.sort();
    blocks
}

/// What the recording machine had, and this daemon has not, or the other way about.
fn left_out(section: &str, step: &Step) -> bool {
    section.starts_with("unprivileged user") || step.command.contains("twos")
}

#[test]
fn the_unmodified_ipvsadm_does_what_it_did_with_a_kernel() {
    if cannot() {
        return;
    }
    let place = Place::new();
    let mut differences = Vec::new();
    let mut replayed = 0;
    for (section, step) in transcript::parse(TRANSCRIPT) {
        if left_out(&section, &step) {
            continue;
        }
        replayed += 1;
        let (stdout, stderr, code) = place.sh(&without_what_is_to_come(&step.command));
        let expected = without_what_is_to_come(&step.stdout);
        let help = step.stdout == "(its help text: left out)\n";
        let errors: Vec<&str> = stderr.lines().collect();
        // ipvsadm takes the difference of two addresses for a signed number, so what it makes of very different ones depends on the order
        // in which the kernel's hash table has them
        let any_order = step.command.starts_with("cat /proc") || expected.contains("TCP  224.0.0.1:80");
        let unordered = any_order && sorted(&stdout) == sorted(&expected);
        let same =
            (help || stdout == expected || unordered) && (help || errors == step.stderr) && code == step.code;
        if !same {
            differences.push(format!("{step:#?}\ngot {code} {errors:?}\n{stdout}"));
        }
    }
    let shown = differences.iter().take(5).cloned().collect::<Vec<_>>().join("\n\n");
    assert!(differences.is_empty(), "{} of {replayed} differ; the first:\n{shown}", differences.len());
    assert!(replayed > 370, "only {replayed}");
}

#[test]
fn without_a_daemon_there_is_no_ipvs() {
    if cannot() {
        return;
    }
    let mut place = Place::new();
    place.daemon.kill().unwrap();
    place.daemon.wait().unwrap();
    place.daemon = Place::holder();
    let (stdout, stderr, code) = place.sh("ipvsadm -Ln");
    assert_eq!((stdout.as_str(), code), ("", 2), "{stderr}");
    assert!(stderr.contains("Can't initialize ipvs: Protocol not available"), "{stderr}");
    let (_, stderr, code) = place.sh("cat /proc/net/ip_vs");
    assert!(code == 1 && stderr.contains("No such file"), "{stderr}");
    let (_, stderr, code) = place.sh("test -e /proc/net/ip_vs");
    assert_eq!((stderr.as_str(), code), ("", 1));
    // other families are the kernel's all the same
    let (stdout, stderr, code) = place.sh("ip link show dev d0");
    assert!(code == 0 && stdout.contains("d0"), "{stderr}");
    // and when there is one, the next program finds it
    place.start();
    assert_eq!(place.sh("ipvsadm -A -t 192.0.2.1:80 && ipvsadm -Sn").0, "-A -t 192.0.2.1:80 -s wlc\n");
}

#[test]
fn settings_are_read_and_written() {
    if cannot() {
        return;
    }
    let place = Place::new();
    let dir = "/proc/sys/net/ipv4/vs";
    assert_eq!(place.sh(&format!("cat {dir}/expire_nodest_conn")), ("0\n".into(), String::new(), 0));
    assert_eq!(
        place.sh(&format!("echo 1 > {dir}/expire_nodest_conn; cat {dir}/expire_nodest_conn")).0,
        "1\n"
    );
    assert_eq!(
        place.sh("sysctl -w net.ipv4.vs.expire_nodest_conn=0; sysctl -n net.ipv4.vs.expire_nodest_conn").0,
        "net.ipv4.vs.expire_nodest_conn = 0\n0\n"
    );
    let (_, stderr, code) = place.sh(&format!("echo 7 | tee {dir}/expire_nodest_conn"));
    assert!(code != 0 && stderr.contains("nvalid argument"), "{code} {stderr}");
    let (_, stderr, code) = place.sh(&format!("cat {dir}/no_such_setting"));
    assert!(code != 0 && stderr.contains("No such file"), "{code} {stderr}");
    let (_, stderr, code) = place.sh("echo 1 > /proc/net/ip_vs");
    assert!(code != 0 && stderr.contains("ermission denied"), "{code} {stderr}");
}

#[test]
fn programs_that_a_library_cannot_stand_before_are_refused_in_one_line() {
    if cannot() {
        return;
    }
    let place = Place::new();
    let out = place.exec(&["no-such-program"]);
    assert_eq!(out.status.code(), Some(127));
    assert_eq!(String::from_utf8_lossy(&out.stderr), "no-such-program: no such program in PATH\n");
    // a program without interpreter: its headers' number is taken away
    let mut fixed = fs::read("/bin/true").unwrap();
    fixed[56..58].fill(0);
    let file = place.dir.join("fixed");
    fs::write(&file, fixed).unwrap();
    let out = place.exec(&[file.to_str().unwrap()]);
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(126));
    assert!(stderr.lines().count() == 1 && stderr.contains("linked statically"), "{stderr}");
}
