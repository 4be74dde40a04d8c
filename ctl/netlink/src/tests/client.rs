//! The client against a server on a socket.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, recv,
    send, socket_with,
};

use crate::memory::Memory;
use crate::*;

/// A socket that is removed at the end.
struct Listener {
    path: PathBuf,
    fd: OwnedFd,
}

impl Listener {
    fn new() -> Self {
        static N: AtomicU32 = AtomicU32::new(0);
        let n = N.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ipvs-netlink-{}-{n}.sock", std::process::id()));
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&fd, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&fd, 4).unwrap();
        Self { path, fd }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

const LONG: Duration = Duration::from_secs(20);

/// Serves one client until it leaves.
fn serve_one(fd: &OwnedFd, backend: &Memory) {
    let client = accept(fd).unwrap();
    let mut buf = vec![0; 65536];
    loop {
        let (len, _) = recv(&client, &mut buf[..], RecvFlags::empty()).unwrap();
        if len == 0 {
            return;
        }
        for reply in serve(backend, &buf[..len]) {
            send(&client, &reply, SendFlags::NOSIGNAL).unwrap();
        }
    }
}

#[test]
fn asks_and_is_answered() {
    let l = Listener::new();
    let backend = Memory::default();
    thread::scope(|s| {
        s.spawn(|| serve_one(&l.fd, &backend));
        let mut c = Client::connect(&l.path, LONG).unwrap();
        let info = c.request(&Request::GetInfo).unwrap();
        assert_eq!(info, [Reply::Info(Info { version: 0x010201, conn_tab_size: 4096 })]);
        assert_eq!(c.request(&Request::DumpServices).unwrap(), []);
        assert!(!c.request(&Request::GetSysctl(None)).unwrap().is_empty());
        let key = ServiceKey::Addr { protocol: 6, addr: [10, 0, 0, 1].into(), port: 80 };
        let e = c.request(&Request::DelService(key)).unwrap_err();
        assert_eq!(e.errno(), Some(Errno::ESRCH));
        assert_eq!(c.request(&Request::Flush).unwrap(), [], "an error spoils nothing");
    });
}

#[test]
fn failures_name_the_socket() {
    let l = Listener::new();
    let path = l.path.display().to_string();
    let e = Client::connect(l.path.with_extension("none"), LONG).unwrap_err();
    assert!(matches!(e, ClientError::NotRunning { .. }) && e.to_string().contains(".none"), "{e}");

    let mut c = Client::connect(&l.path, Duration::from_millis(50)).unwrap();
    let e = c.request(&Request::GetInfo).unwrap_err();
    assert!(matches!(e, ClientError::Timeout { .. }) && e.to_string().contains(&path), "{e}");

    // Accepts the last client, then another, and leaves both.
    let mut c = Client::connect(&l.path, LONG).unwrap();
    drop(accept(&l.fd).unwrap());
    drop(accept(&l.fd).unwrap());
    let e = c.request(&Request::GetInfo).unwrap_err();
    assert!(matches!(e, ClientError::Closed { .. }) && e.to_string().contains(&path), "{e}");

    let e = Client::connect("/x".repeat(100), LONG).unwrap_err();
    assert!(matches!(e, ClientError::Io { .. }), "{e}");
}

#[test]
fn a_server_without_the_family_is_told_apart() {
    let l = Listener::new();
    thread::scope(|s| {
        s.spawn(|| {
            let client = accept(&l.fd).unwrap();
            let mut buf = vec![0; 4096];
            let (len, _) = recv(&client, &mut buf[..], RecvFlags::empty()).unwrap();
            // As a server that has never heard of nlctrl.
            buf[4] = 99;
            for reply in serve(&Memory::default(), &buf[..len]) {
                send(&client, &reply, SendFlags::NOSIGNAL).unwrap();
            }
        });
        let mut c = Client::connect(&l.path, LONG).unwrap();
        let e = c.request(&Request::GetInfo).unwrap_err();
        assert!(matches!(e, ClientError::NoFamily { name: "IPVS", .. }), "{e}");
    });
}
