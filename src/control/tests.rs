use std::fs;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ipvs_netlink::memory::Memory;
use ipvs_netlink::*;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};

use super::state::StateFile;
use super::*;

/// A directory that is removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static N: AtomicU32 = AtomicU32::new(0);
        let n = N.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lvsd-control-{}-{n}", std::process::id()));
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

const LONG: Duration = Duration::from_secs(20);

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < end, "no {what} within {LONG:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn key(port: u16) -> ServiceKey {
    ServiceKey::Addr { protocol: 6, addr: IpAddr::from([10, 0, 0, 1]), port }
}

fn service(port: u16) -> Service {
    let Saved::Service(s) = parse_line(&format!("-A -t 10.0.0.1:{port} -s rr")).unwrap() else { panic!() };
    s
}

fn dest(line: &str) -> Dest {
    let Saved::Dest(_, d) = parse_line(&format!("-a -t 10.0.0.1:80 {line}")).unwrap() else { panic!() };
    d
}

fn error<T>(result: Result<T, ControlError>) -> String {
    let text = result.err().expect("an error").to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

#[test]
fn the_socket_is_private_and_goes_away() {
    let dir = Dir::new();
    let path = dir.file("s");
    let socket = ControlSocket::bind(&path, None).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(socket);
    assert!(!path.exists());
    let own = rustix::process::getegid().as_raw().to_string();
    let socket = ControlSocket::bind(&path, Some(&own)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    drop(socket);
    let e = error(ControlSocket::bind(&path, Some("no-such-group")));
    assert!(e.contains("no-such-group"), "{e}");
    assert!(!path.exists(), "nothing is left after an error");
}

#[test]
fn a_left_over_socket_is_replaced_and_a_living_one_is_not() {
    let dir = Dir::new();
    let path = dir.file("s");
    let name = path.display().to_string();
    // As a killed daemon leaves it: the file is there, nobody listens.
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&fd, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    drop(fd);
    assert!(path.exists());
    let socket = ControlSocket::bind(&path, None).unwrap();
    let e = error(ControlSocket::bind(&path, None));
    assert!(e.contains("another lvsd is running") && e.contains(&name), "{e}");
    assert!(path.exists(), "the first is untouched");
    drop(socket);
    // Another kind of server is one, too.
    let listener = UnixListener::bind(&path).unwrap();
    let e = error(ControlSocket::bind(&path, None));
    assert!(e.contains("another"), "{e}");
    drop(listener);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "mine").unwrap();
    let e = error(ControlSocket::bind(&path, None));
    assert!(e.contains("not a socket") && e.contains(&name), "{e}");
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    let e = error(ControlSocket::bind(&dir.file("no/s"), None));
    assert!(e.contains("/no/s") && e.contains("directory"), "{e}");
}

#[test]
fn a_file_that_took_the_sockets_place_is_not_removed() {
    let dir = Dir::new();
    let path = dir.file("s");
    let socket = ControlSocket::bind(&path, None).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "mine").unwrap();
    drop(socket);
    assert_eq!(fs::read(&path).unwrap(), b"mine");
}

#[test]
fn only_one_of_many_daemons_that_start_together_gets_a_left_over_socket() {
    let dir = Dir::new();
    let path = dir.file("s");
    drop(UnixListener::bind(&path).unwrap());
    let start = std::sync::Barrier::new(8);
    let bound: Vec<_> = thread::scope(|s| {
        let one = || {
            start.wait();
            ControlSocket::bind(&path, None)
        };
        let threads: Vec<_> = (0..8).map(|_| s.spawn(one)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(bound.iter().filter(|b| b.is_ok()).count(), 1);
}

fn started(dir: &Dir, state: bool) -> (Control, Arc<Memory>) {
    let backend = Arc::new(Memory::default());
    let socket = ControlSocket::bind(&dir.file("s"), None).unwrap();
    let state = state.then(|| StateFile::load(&dir.file("state"), &*backend).unwrap());
    (
        Control::start(Prepared::new().unwrap(), socket, backend.clone(), state, Box::new(|| {})).unwrap(),
        backend,
    )
}

#[test]
fn many_clients_are_served() {
    let dir = Dir::new();
    let (control, backend) = started(&dir, false);
    thread::scope(|s| {
        for t in 0..8 {
            let path = dir.file("s");
            s.spawn(move || {
                let mut c = Client::connect(path, LONG).unwrap();
                for n in 0..50 {
                    let port = 1000 + t * 100 + n;
                    c.request(&Request::NewService(service(port))).unwrap();
                    let e = c.request(&Request::NewService(service(port))).unwrap_err();
                    assert_eq!(e.errno(), Some(Errno::EEXIST));
                }
            });
        }
    });
    assert_eq!(backend.services().len(), 400);
    control.stop().unwrap();
    assert!(!dir.file("s").exists());
}

#[test]
fn clients_are_cut_off_by_a_stop() {
    let dir = Dir::new();
    let (control, _) = started(&dir, false);
    let mut c = Client::connect(dir.file("s"), LONG).unwrap();
    c.request(&Request::GetInfo).unwrap();
    control.stop().unwrap();
    assert!(matches!(c.request(&Request::GetInfo), Err(ClientError::Closed { .. })));
}

fn raw_client(path: &Path) -> OwnedFd {
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&fd, &SocketAddrUnix::new(path).unwrap()).unwrap();
    fd
}

#[test]
fn a_client_that_does_not_read_is_closed_and_holds_nobody_up() {
    let dir = Dir::new();
    let path = dir.file("s");
    let backend = Arc::new(Memory::default());
    let conn = |n: u32| ConnEntry {
        protocol: 6,
        client: (IpAddr::from(n.to_be_bytes()), 1),
        virt: ([10, 0, 0, 1].into(), 80),
        dest: ([10, 1, 0, 1].into(), 80),
        state: "ESTABLISHED".into(),
        expires: 1,
        flags: 0,
    };
    backend.set_conns((0..100_000).map(conn).collect());
    let socket = ControlSocket::bind(&path, None).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let recorder = Arc::new(Recorder::new(backend));
    // Long enough for the reader beside it on a busy machine.
    let send_timeout = Duration::from_secs(2);
    // Also where an assertion fails: the scope waits for the server.
    struct Quit(Arc<Notify>);
    impl Drop for Quit {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    thread::scope(|s| {
        let quit = Quit(Arc::new(Notify::new()));
        let quit2 = quit.0.clone();
        let server = s.spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    r = server::serve_clients(&socket, recorder, send_timeout) => r,
                    () = quit2.notified() => Ok(()),
                }
            })
        });
        let slow = raw_client(&path);
        let (_, request) =
            Exchange::new(&Request::DumpConns, Envelope { family: FAMILY_LVSD, seq: 1, pid: 0 }).unwrap();
        send(&slow, &request, SendFlags::NOSIGNAL).unwrap();
        let mut other = Client::connect(&path, LONG).unwrap();
        // Closed once its queue has been full for long enough; the other is served all the time.
        wait_for("closing of the slow client", || {
            other.request(&Request::GetInfo).unwrap();
            send(&slow, &[], SendFlags::NOSIGNAL).is_err()
        });
        assert_eq!(other.request(&Request::DumpConns).unwrap().len(), 100_000);
        drop(quit);
        server.join().unwrap().unwrap();
    });
}

#[test]
fn a_request_that_is_too_long_closes_its_client_only() {
    let dir = Dir::new();
    let (control, _) = started(&dir, false);
    let long = raw_client(&dir.file("s"));
    send(&long, &vec![0; 100_000], SendFlags::NOSIGNAL).unwrap();
    wait_for("closing", || send(&long, &[], SendFlags::NOSIGNAL).is_err());
    Client::connect(dir.file("s"), LONG).unwrap().request(&Request::GetInfo).unwrap();
    control.stop().unwrap();
}

#[test]
fn the_state_survives() {
    let dir = Dir::new();
    let state = dir.file("state");
    let (control, _) = started(&dir, true);
    let mut c = Client::connect(dir.file("s"), LONG).unwrap();
    let dests =
        ["-r 10.1.0.9:80 -m -w 1 -x 100 -y 7", "-r 10.1.0.2:80 -g -w 0", "-r 10.1.0.5:80 -i -w 3"].map(dest);
    c.request(&Request::NewService(service(80))).unwrap();
    for d in &dests {
        c.request(&Request::NewDest(key(80), d.clone())).unwrap();
    }
    c.request(&Request::SetConfig(Timeouts { tcp: 0, tcp_fin: 33, udp: 0 })).unwrap();
    let sysctl = Sysctl { name: "sync_threshold".into(), value: "4\t60".into() };
    c.request(&Request::SetSysctl(sysctl.clone())).unwrap();
    let master = parse_line("--start-daemon master --mcast-interface d0 --syncid 3").unwrap();
    let Saved::Daemon(master) = master else { panic!() };
    c.request(&Request::NewDaemon(master)).unwrap();
    let changed = Instant::now();
    wait_for("state on disk", || fs::read_to_string(&state).is_ok_and(|t| t.contains("--start-daemon")));
    // Generous: the machine may be busy. The promise is one second.
    assert!(changed.elapsed() < Duration::from_secs(5));
    assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&state).unwrap();
    let lines: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "#sysctl sync_threshold 4\t60",
            "--set 900 33 300",
            "-A -t 10.0.0.1:80 -s rr",
            "-a -t 10.0.0.1:80 -r 10.1.0.9:80 -m -w 1 -x 100 -y 7",
            "-a -t 10.0.0.1:80 -r 10.1.0.2:80 -g -w 0",
            "-a -t 10.0.0.1:80 -r 10.1.0.5:80 -i -w 3 --tun-type ipip",
            "--start-daemon master --mcast-interface d0 --syncid 3 --sync-maxlen 1472 --mcast-group 224.0.0.81 --mcast-port 8848 --mcast-ttl 1",
        ]
    );
    // A change right before the stop is not lost.
    c.request(&Request::NewService(service(81))).unwrap();
    control.stop().unwrap();
    let (control, backend) = started(&dir, true);
    assert_eq!(backend.services().len(), 2);
    let order: Vec<Dest> = backend.dests(&key(80)).unwrap().into_iter().map(|e| e.dest).rev().collect();
    assert_eq!(order, dests, "in the order of addition");
    assert_eq!(backend.timeouts(), Timeouts { tcp: 900, tcp_fin: 33, udp: 300 });
    assert!(backend.sysctls().contains(&sysctl));
    assert_eq!(backend.daemons().len(), 1);
    let before = fs::metadata(&state).unwrap().modified().unwrap();
    control.stop().unwrap();
    assert_eq!(fs::metadata(&state).unwrap().modified().unwrap(), before, "no change, no writing");
    assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1, "nothing but the state is left");
}

#[test]
fn a_missing_state_is_empty_and_its_directory_is_made() {
    let dir = Dir::new();
    let backend = Memory::default();
    StateFile::load(&dir.file("a/b/state"), &backend).unwrap();
    assert!(backend.services().is_empty());
    assert_eq!(fs::metadata(dir.file("a/b")).unwrap().permissions().mode() & 0o777, 0o700);
    let e = error(StateFile::load(&dir.0, &backend));
    assert!(e.contains(dir.0.to_str().unwrap()) && e.contains("can't be read"), "{e}");
}

#[test]
fn a_state_file_is_a_file_and_a_link_leads_to_it() {
    let dir = Dir::new();
    let pipe = dir.file("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [pipe.as_path(), Path::new("/dev/null")] {
        let e = error(StateFile::load(path, &Memory::default()));
        assert!(e.contains(path.to_str().unwrap()) && e.contains("regular file"), "{e}");
    }
    fs::write(dir.file("state"), "").unwrap();
    std::os::unix::fs::symlink(dir.file("state"), dir.file("link")).unwrap();
    let first = StateFile::load(&dir.file("state"), &Memory::default()).unwrap();
    let e = error(StateFile::load(&dir.file("link"), &Memory::default()));
    assert!(e.contains(&format!("process {}", std::process::id())), "{e}");
    drop(first);
    StateFile::load(&dir.file("link"), &Memory::default()).unwrap();
}

#[test]
fn a_state_file_has_one_owner_at_a_time() {
    let dir = Dir::new();
    let path = dir.file("state");
    let first = StateFile::load(&path, &Memory::default()).unwrap();
    let refused = |path: &Path| {
        let e = error(StateFile::load(path, &Memory::default()));
        let own = format!("(process {})", std::process::id());
        assert!(
            e.starts_with(&format!(
                "--state-file {}: another lvsd {own}",
                fs::canonicalize(path).unwrap_or(path.into()).display()
            )),
            "{e}"
        );
    };
    refused(&path);
    // The lock survives that the file is replaced, and holds by whatever way the directory is reached.
    let recorder = Recorder::new(Arc::new(Memory::default()));
    recorder.add_service(&service(80)).unwrap();
    first.save_if_changed(&recorder).unwrap();
    refused(&path);
    std::os::unix::fs::symlink(&dir.0, dir.file("link")).unwrap();
    refused(&dir.file("link/state"));
    StateFile::load(&dir.file("other"), &Memory::default()).unwrap();
    drop(first);
    assert!(!dir.file("state.lock").exists());
    // As a killed daemon leaves it.
    fs::write(dir.file("state.lock"), "1\n").unwrap();
    let backend = Memory::default();
    let second = StateFile::load(&path, &backend).unwrap();
    assert_eq!(backend.services().len(), 1);
    refused(&path);
    drop(second);
}

#[test]
fn one_of_many_daemons_that_start_together_gets_the_state_file() {
    let dir = Dir::new();
    let path = dir.file("state");
    let start = std::sync::Barrier::new(8);
    for _ in 0..3 {
        let got: Vec<_> = thread::scope(|s| {
            let one = || {
                start.wait();
                let got = StateFile::load(&path, &Memory::default());
                // Nobody gives it back before all have tried.
                start.wait();
                got.is_ok()
            };
            let threads: Vec<_> = (0..8).map(|_| s.spawn(one)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(got.iter().filter(|b| **b).count(), 1);
    }
}

#[test]
fn a_bad_line_is_named() {
    let dir = Dir::new();
    let path = dir.file("state");
    let load = |text: &str| {
        fs::write(&path, text).unwrap();
        let backend = Memory::default();
        let e = error(StateFile::load(&path, &backend));
        assert!(e.contains(path.to_str().unwrap()), "{e}");
        (e, backend.services().len())
    };
    let (e, applied) = load("# x\n-A -t 10.0.0.1:80 -s rr\n-A -t 10.0.0.1:81 -s\n");
    assert!(e.contains("line 3: the option '-s' needs a value"), "{e}");
    assert_eq!(applied, 0, "nothing of a state that can't be read");
    let (e, _) = load("-A -t 10.0.0.1:80 -s rr\n\n-A -t 10.0.0.1:80 -s rr\n");
    assert!(e.contains("line 3: '-A -t 10.0.0.1:80 -s rr': an earlier line has the same service;"), "{e}");
    for (text, says) in [
        ("#sysctl nosuch 1\n", "line 1: '#sysctl nosuch 1': there is no setting 'nosuch' in this version;"),
        ("#sysctl drop_entry 9\n", "'9' is no value of 'drop_entry';"),
        (
            "#\n-A -t 10.0.0.1:80 -s no\n",
            "line 2: '-A -t 10.0.0.1:80 -s no': there is no scheduler 'no' in this version, but rr wrr ",
        ),
        ("-A -t 10.0.0.1:80 -s rr -p 9 --pe no\n", "there is no persistence engine 'no' in this version;"),
        ("-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1\n", "no earlier line has its service;"),
    ] {
        let (e, _) = load(text);
        assert!(e.contains(says), "{text}{e}");
    }
}

#[test]
fn a_state_that_cannot_be_written_is_an_error_at_the_stop() {
    let dir = Dir::new();
    let (control, _) = started(&dir, true);
    let mut c = Client::connect(dir.file("s"), LONG).unwrap();
    // A directory in the file's place: neither root's privilege nor a retry helps.
    fs::create_dir(dir.file("state")).unwrap();
    c.request(&Request::NewService(service(80))).unwrap();
    let e = error(control.stop());
    assert!(e.contains("--state-file") && e.contains("can't be replaced"), "{e}");
    assert!(!dir.file("state.new").exists(), "nothing half-done is left");
}

#[test]
fn the_control_thread_looks_every_second() {
    let dir = Dir::new();
    let looks = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&looks);
    let every_second = Box::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let socket = ControlSocket::bind(&dir.file("s"), None).unwrap();
    let backend = Arc::new(Memory::default());
    let start = Instant::now();
    let control = Control::start(Prepared::new().unwrap(), socket, backend, None, every_second).unwrap();
    wait_for("looks", || looks.load(Ordering::Relaxed) >= 3);
    assert!(start.elapsed() >= Duration::from_millis(1900), "not more often");
    control.stop().unwrap();
}

#[test]
fn the_first_reason_to_stop_counts() {
    let dir = Dir::new();
    let (control, _) = started(&dir, false);
    control.stopper().stop(Stop::Failed("eth1: gone".into()));
    control.stopper().stop(Stop::Signal("SIGTERM"));
    assert_eq!(control.wait(|| true), Stop::Failed("eth1: gone".into()));
    control.stop().unwrap();
}
