//! The program itself, over a socket like the daemon's.

use std::fs::Permissions;
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ipvs_netlink::memory::Memory;
use ipvs_netlink::{Backend, serve};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, recv,
    send, socket_with,
};

/// A folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("lvsctl-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("s")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Answers clients one after the other until there was none for a while.
fn serve_on(path: &Path, backend: Arc<dyn Backend>) {
    let listener =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&listener, 16).unwrap();
    set_socket_timeout(&listener, Timeout::Recv, Some(Duration::from_secs(20))).unwrap();
    std::thread::spawn(move || {
        while let Ok(client) = accept(&listener) {
            answer(&client, &*backend);
        }
    });
}

fn answer(client: &OwnedFd, backend: &dyn Backend) {
    let mut buf = vec![0; 65536];
    while let Ok((len @ 1.., _)) = recv(client, &mut buf[..], RecvFlags::empty()) {
        for reply in serve(backend, &buf[..len]) {
            if send(client, &reply, SendFlags::NOSIGNAL).is_err() {
                return;
            }
        }
    }
}

fn lvsctl(socket: &Path, words: &[&str], stdin: &str) -> Output {
    output(Command::new(env!("CARGO_BIN_EXE_lvsctl")).arg("--socket").arg(socket).args(words), stdin)
}

fn output(command: &mut Command, stdin: &str) -> Output {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    // who refuses its words may have ended before it reads
    let written = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    assert!(written.is_ok() || written.is_err_and(|e| e.kind() == ErrorKind::BrokenPipe));
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn speaks_to_a_daemon() {
    let folder = Folder::new();
    serve_on(&folder.socket(), Arc::new(Memory::default()));
    let run = |words: &[&str], stdin: &str| lvsctl(&folder.socket(), words, stdin);
    let out = run(&["-A", "-t", "10.0.0.1:80", "-s", "rr"], "");
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), ""));
    let out = run(&["-R"], "-a -t 10.0.0.1:80 -r 10.1.0.1 -m\n-A -t 10.0.0.1:80 -s rr\n");
    assert_eq!(
        (out.status.code(), text(&out.stderr)),
        (Some(255), "line 2: Service already exists: TCP 10.0.0.1:80\n")
    );
    let out = run(&["-Ln"], "");
    assert_eq!(
        (out.status.code(), text(&out.stdout)),
        (
            Some(0),
            "IP Virtual Server version 1.2.1 (size=4096)\n\
             Prot LocalAddress:Port Scheduler Flags\n  \
             -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n\
             TCP  10.0.0.1:80 rr\n  \
             -> 10.1.0.1:80                  Masq    1      0          0         \n"
        )
    );
    let out = run(&["-L", "-t", "10.0.0.2:80"], "");
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(1), "No such service: TCP 10.0.0.2:80\n"));
}

#[test]
fn the_socket_may_come_from_the_environment() {
    let folder = Folder::new();
    serve_on(&folder.socket(), Arc::new(Memory::default()));
    let out = Command::new(env!("CARGO_BIN_EXE_lvsctl"))
        .env("LVSD_SOCKET", folder.socket())
        .args(["-L", "--timeout"])
        .output()
        .unwrap();
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(0), "Timeout (tcp tcpfin udp): 900 120 300\n"));
}

#[test]
fn says_what_to_do_without_a_daemon() {
    let folder = Folder::new();
    let out = lvsctl(&folder.socket(), &["-Ln"], "");
    let path = folder.socket().display().to_string();
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(2), ""));
    let stderr = text(&out.stderr);
    assert!(stderr.contains(&path) && stderr.contains("lvsd") && stderr.lines().count() == 1, "{stderr}");
    // Neither help nor a wrong line needs one.
    assert_eq!(lvsctl(&folder.socket(), &["--help"], "").status.code(), Some(0));
    assert_eq!(lvsctl(&folder.socket(), &["-A"], "").status.code(), Some(2));
}

#[test]
fn says_what_to_do_without_permission() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "must be root to become somebody else");
        println!("skipped: must be root to become somebody else");
        return;
    }
    let folder = Folder::new();
    serve_on(&folder.socket(), Arc::new(Memory::default()));
    std::fs::set_permissions(&folder.0, Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(folder.socket(), Permissions::from_mode(0o600)).unwrap();
    // The program may lie where only root can read, so a copy of it is run.
    let program = folder.0.join("lvsctl");
    // Another process copies it: a file that we had open for writing might be inherited by a program that another test
    // starts just then, and could not be run ("Text file busy").
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_lvsctl")).arg(&program).status().unwrap();
    assert!(copied.success());
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let out = Command::new(program)
        .arg("--socket")
        .arg(folder.socket())
        .arg("-Ln")
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let stderr = text(&out.stderr);
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(2), ""), "{stderr}");
    let path = folder.socket().display().to_string();
    assert!(stderr.contains(&path) && stderr.contains("permission denied: run lvsctl as root"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn a_closed_output_is_no_error_and_a_full_one_is() {
    let folder = Folder::new();
    serve_on(&folder.socket(), Arc::new(Memory::default()));
    let run = |stdout: Stdio| {
        Command::new(env!("CARGO_BIN_EXE_lvsctl"))
            .arg("--socket")
            .arg(folder.socket())
            .arg("-Ln")
            .stdout(stdout)
            .output()
            .unwrap()
    };
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let out = run(full.into());
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).starts_with("standard output: No space left"), "{}", text(&out.stderr));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let out = run(writer.into());
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), ""));
}

/// Installed under another name, as a link.
fn as_program(name: &str, socket: &Path, words: &[&str], stdin: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lvsctl"));
    output(command.arg0(name).env("LVSD_SOCKET", socket).args(words), stdin)
}

#[test]
fn under_ipvsadms_names_it_is_those_programs() {
    let folder = Folder::new();
    serve_on(&folder.socket(), Arc::new(Memory::default()));
    let ask = |name, words: &[&str], stdin| as_program(name, &folder.socket(), words, stdin);
    let out = ask("/sbin/ipvsadm", &["-A", "-t", "192.0.2.1:80"], "");
    assert!(out.status.success(), "{out:?}");
    let out = ask("ipvsadm-save", &["-n"], "");
    assert_eq!(out.stdout, b"-A -t 192.0.2.1:80 -s wlc\n");
    // lvsctl's own words are no commands of ipvsadm
    for words in [&["status"][..], &["--socket", "/x", "-Ln"]] {
        assert_eq!(ask("ipvsadm", words, "").status.code(), Some(255), "{words:?}");
    }
    let out = ask("ipvsadm-save", &["-x"], "");
    assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0), "{out:?}");
    // comments are passed over, and arguments ignored, as by Debian's script; lines keep their numbers
    let saved = "# saved\n-A -t 192.0.2.2:80 -s rr\n#\n# -A -t 192.0.2.3:80\n\n-A -t 192.0.2.4:80 -s nosuch\n-A -t 192.0.2.5:80 -s rr\n# end";
    let out = ask("ipvsadm-restore", &["-n"], saved);
    let stderr = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(0), "{stderr}");
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{stderr}");
    assert!(lines[0].contains("-n is ignored") && lines[1].starts_with("line 6: "), "{stderr}");
    let rules = b"-A -t 192.0.2.2:80 -s rr\n-A -t 192.0.2.5:80 -s rr\n";
    assert_eq!(ask("ipvsadm-save", &["-n"], "").stdout, rules);
}

#[test]
fn bash_completes_what_is_there() {
    let lvsctl = env!("CARGO_BIN_EXE_lvsctl");
    let complete = |words: &str| {
        let last = words.split(' ').count() - 1;
        let script = format!(
            "source <({lvsctl} completions bash); COMP_WORDS=({words}); COMP_CWORD={last}; \
             _lvsctl lvsctl \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\"; printf '%s ' \"${{COMPREPLY[@]}}\""
        );
        let out = Command::new("bash").args(["-c", &script]).output().unwrap();
        assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
        String::from_utf8(out.stdout).unwrap().trim_end().to_owned()
    };
    assert_eq!(complete("lvsctl --add-se"), "--add-service --add-server");
    assert_eq!(complete("lvsctl --persistent-"), "--persistent-conn");
    assert_eq!(complete("lvsctl stat"), "status");
    assert_eq!(complete("lvsctl status --non"), "--nonzero");
}
