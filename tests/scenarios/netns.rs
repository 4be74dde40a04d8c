//! Network namespaces, and programs and threads inside them, each removed by its guard.
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::LinkNameSpaceType;

const PREFIX: &str = "lvst";
static COUNTER: AtomicU32 = AtomicU32::new(0);
static SWEEP: Once = Once::new();

/// A network namespace with a name of its own; deleted on drop.
pub(crate) struct Netns {
    name: String,
}

impl Netns {
    /// Makes one, with loopback up. `role` is for people who look at `ip netns list`.
    pub(crate) fn new(role: &str) -> Netns {
        SWEEP.call_once(sweep);
        let n = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}-{}-{n}-{role}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name]));
        let ns = Netns { name };
        // No duplicate address detection and no router solicitations: addresses are usable at once.
        ns.sysctl("net.ipv6.conf.all.accept_dad", "0");
        ns.sysctl("net.ipv6.conf.default.accept_dad", "0");
        ns.sysctl("net.ipv6.conf.default.router_solicitations", "0");
        ns.sysctl("net.ipv4.conf.all.rp_filter", "0");
        ns.sysctl("net.ipv4.conf.default.rp_filter", "0");
        ns.ip("link set lo up");
        ns
    }

    /// The name `ip netns` knows it by.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    /// Moves the calling thread into the namespace, for good.
    fn enter(&self) {
        enter(&self.path());
    }

    /// Runs `f` on a thread inside, and waits for it.
    pub(crate) fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|s| {
            let inside = s.spawn(|| {
                self.enter();
                f()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A command that will run inside. Its process is the program itself, and dies with the thread that started it.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut c = Command::new("setpriv");
        c.args(["--pdeathsig", "KILL", "nsenter"])
            .arg(format!("--net={}", self.path()))
            .args(["--", program]);
        c
    }

    /// Runs a command line (words split at blanks) inside and returns its standard output; fails the test if it fails.
    #[track_caller]
    pub(crate) fn sh(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let program = words.next().expect("a command");
        run(self.command(program).args(words))
    }

    /// Runs a command line inside, whatever comes of it.
    pub(crate) fn try_sh(&self, line: &str) -> Output {
        let mut words = line.split_whitespace();
        let program = words.next().expect("a command");
        self.command(program).args(words).stdin(Stdio::null()).output().expect("the program starts")
    }

    /// Runs `ip` commands, one a line; the namespace is the one they act in.
    #[track_caller]
    pub(crate) fn ip(&self, lines: &str) {
        let mut child = Command::new("ip")
            .args(["-n", &self.name, "-batch", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("ip starts");
        child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("ip reads");
        let out = child.wait_with_output().expect("ip ends");
        assert!(
            out.status.success(),
            "in {}: ip {lines}\n{}",
            self.name,
            String::from_utf8_lossy(&out.stderr)
        );
    }

    /// Sets a sysctl. `key` with dots; a dot inside an interface's name is not supported.
    #[track_caller]
    pub(crate) fn sysctl(&self, key: &str, value: &str) {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        self.run(|| std::fs::write(&path, value)).unwrap_or_else(|e| panic!("{key} = {value}: {e}"));
    }

    /// The MAC address of a device, as text.
    #[track_caller]
    pub(crate) fn mac(&self, dev: &str) -> String {
        let text = self.sh(&format!("ip -o link show dev {dev}"));
        let mut words = text.split_whitespace().skip_while(|w| *w != "link/ether");
        words.nth(1).unwrap_or_else(|| panic!("a MAC in {text}")).to_string()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // Output of a failure here would hide the test's own; a stale namespace is swept by a later run.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).stderr(Stdio::null()).status();
    }
}

fn enter(path: &str) {
    let file = File::open(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .unwrap_or_else(|e| panic!("setns {path}: {e}"));
}

/// Deletes namespaces of runs whose process is gone (killed before its guards could act). Their programs are dead too.
fn sweep() {
    let Ok(dir) = std::fs::read_dir("/run/netns") else { return };
    for name in dir.flatten().filter_map(|e| e.file_name().into_string().ok()) {
        let mut parts = name.split('-');
        let ours = parts.next() == Some(PREFIX);
        let pid = parts.next().and_then(|p| p.parse::<u32>().ok());
        if let (true, Some(pid)) = (ours, pid)
            && !PathBuf::from(format!("/proc/{pid}")).exists()
        {
            let _ = Command::new("ip").args(["netns", "del", &name]).stderr(Stdio::null()).status();
        }
    }
    sweep_pins();
}

/// Removes a data plane that a daemon has left.
fn take_down(dir: &Path) {
    match pinned::PinDir::find(dir) {
        Ok(Some(found)) => drop(found.remove().inspect_err(|e| println!("{e}"))),
        Ok(None) => {}
        Err(e) => println!("{e}"),
    }
}

/// The same for daemons of runs whose process is gone.
fn sweep_pins() {
    let Ok(dir) = std::fs::read_dir("/sys/fs/bpf/lvsd") else { return };
    for entry in dir.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let pid = name.split_once(&format!("{PREFIX}-")).and_then(|(_, rest)| rest.split('-').next());
        if let Some(pid) = pid.and_then(|p| p.parse::<u32>().ok())
            && !PathBuf::from(format!("/proc/{pid}")).exists()
        {
            take_down(&entry.path());
        }
    }
}

/// Runs a command to its end and returns its standard output; fails the test with its standard error if it fails.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let out = command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        out.status.success(),
        "{command:?}: {}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A program started by a test, with its output in a file; killed on drop.
pub(crate) struct Proc {
    child: Child,
    log: PathBuf,
}

impl Proc {
    /// Starts `command` with standard output and error going to `log`.
    #[track_caller]
    pub(crate) fn start(command: &mut Command, log: PathBuf) -> Proc {
        let file = File::options().create(true).append(true).open(&log).expect("a log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second handle"))
            .stderr(file)
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Proc { child, log }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child to wait for")
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).expect("a process id");
        rustix::process::kill_process(pid, signal).expect("a process to signal");
    }

    /// What it has written so far.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory of its own; removed on drop.
pub(crate) struct TempDir {
    path: PathBuf,
}

impl TempDir {
    pub(crate) fn new() -> TempDir {
        let n = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("{PREFIX}-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        TempDir { path }
    }

    /// The path of `name` in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // what a daemon here may have left in the kernel
        take_down(&pinned::default_dir(&self.join("lvsd.sock")));
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
