//! What runs in the servers: nginx, and small servers of our own where a real one could not tell what we ask.
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::netns::{Netns, Proc};
use crate::wait::{secs, until};

/// nginx answering with its server's name: on port 80 one request a connection, on 8080 with keep-alive for an hour.
/// `/files/` serves the directory [`Nginx::files`].
pub(crate) struct Nginx {
    _process: Proc,
    files: PathBuf,
}

impl Nginx {
    /// Starts it in `ns` with everything of its own in `dir`, and waits until it answers.
    pub(crate) fn start(ns: &Netns, name: &str, dir: PathBuf) -> Nginx {
        let files = dir.join("www/files");
        std::fs::create_dir_all(&files).expect("a directory for nginx");
        let conf = dir.join("nginx.conf");
        std::fs::write(&conf, config(name, &dir)).expect("nginx's configuration");
        let mut command = ns.command("nginx");
        command.args(["-e", "stderr", "-p"]).arg(&dir).arg("-c").arg(&conf);
        let mut process = Proc::start(&mut command, dir.join("nginx.log"));
        until("nginx accepts connections", secs(10), || {
            assert!(process.ended().is_none(), "nginx ended: {}", process.output());
            ns.run(|| TcpStream::connect((Ipv6Addr::LOCALHOST, 8080))).ok()
        });
        Nginx { _process: process, files }
    }

    /// The directory that `/files/` serves.
    pub(crate) fn files(&self) -> &Path {
        &self.files
    }
}

fn config(name: &str, dir: &Path) -> String {
    let d = dir.display();
    format!(
        "daemon off; master_process off; pid {d}/pid; worker_rlimit_nofile 8192; error_log stderr;
events {{ worker_connections 4096; }}
http {{
  access_log off; default_type application/octet-stream; sendfile on; tcp_nopush on;
  client_body_temp_path {d}/t1; proxy_temp_path {d}/t2; fastcgi_temp_path {d}/t3; uwsgi_temp_path {d}/t4;
  scgi_temp_path {d}/t5;
  server {{
    listen 80 backlog=4096; listen [::]:80 ipv6only=on backlog=4096; keepalive_timeout 0;
    location / {{ return 200 \"{name}\\n\"; }}
    location /files/ {{ root {d}/www; }}
  }}
  server {{
    listen 8080 backlog=4096; listen [::]:8080 ipv6only=on backlog=4096;
    keepalive_timeout 1h; keepalive_requests 1000000;
    location / {{ return 200 \"{name}\\n\"; }}
  }}
}}
"
    )
}

/// What a [`TcpServer`] does with a connection, after it has sent its name and a newline.
#[derive(Clone, Copy)]
pub(crate) enum Service {
    /// Sends back what comes.
    Echo,
    /// Says after its name whom it serves, and sends back what comes, each byte XORed with this one: every byte tells whose it
    /// is.
    Mark(u8),
    /// Reads a length (8 bytes, big endian) and that many bytes; answers with their SHA-256 as `sha256sum` says it,
    /// and a newline.
    Sink,
}

/// A TCP server on threads of this process that live in a namespace.
pub(crate) struct TcpServer {
    listener: Arc<TcpListener>,
    open: Arc<Mutex<HashMap<u64, TcpStream>>>,
    accept: Option<JoinHandle<()>>,
}

impl TcpServer {
    /// Starts it on a port of all addresses.
    pub(crate) fn start(ns: &Netns, name: &str, port: u16, service: Service) -> TcpServer {
        let listener =
            ns.run(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))).expect("a port to listen on");
        let listener = Arc::new(listener);
        let open = Arc::new(Mutex::new(HashMap::new()));
        let (l, o, banner) = (listener.clone(), open.clone(), format!("{name}\n"));
        // The listening socket belongs to the namespace, so its connections do, whatever thread serves them.
        let accept = std::thread::spawn(move || {
            for number in 0.. {
                let Ok((stream, _)) = l.accept() else { break };
                if let Ok(copy) = stream.try_clone() {
                    o.lock().expect("no panic under the lock").insert(number, copy);
                }
                let (banner, open) = (banner.clone(), o.clone());
                std::thread::spawn(move || {
                    // The client sees a failure as a closed connection.
                    let _ = serve(stream, &banner, service);
                    open.lock().expect("no panic under the lock").remove(&number);
                });
            }
        });
        TcpServer { listener, open, accept: Some(accept) }
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        // Wakes accept() with an error.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        for s in self.open.lock().map(|mut o| std::mem::take(&mut *o)).unwrap_or_default().into_values() {
            let _ = s.shutdown(Shutdown::Both);
        }
        if let Some(a) = self.accept.take() {
            let _ = a.join();
        }
    }
}

fn serve(mut stream: TcpStream, banner: &str, service: Service) -> std::io::Result<()> {
    if let Service::Mark(_) = service {
        let peer = stream.peer_addr()?;
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        writeln!(stream, "{} {peer}", banner.trim_end())?;
    } else {
        stream.write_all(banner.as_bytes())?;
    }
    match service {
        Service::Echo => {
            let mut from = stream.try_clone()?;
            std::io::copy(&mut from, &mut stream)?;
        }
        Service::Mark(mark) => {
            // a client may be cut off without a word
            stream.set_read_timeout(Some(secs(30)))?;
            let mut buffer = vec![0; 1 << 16];
            loop {
                let n = stream.read(&mut buffer)?;
                if n == 0 {
                    break;
                }
                buffer[..n].iter_mut().for_each(|b| *b ^= mark);
                stream.write_all(&buffer[..n])?;
            }
        }
        Service::Sink => {
            let mut length = [0; 8];
            stream.read_exact(&mut length)?;
            let sum = sha256(&mut (&stream).take(u64::from_be_bytes(length)))?;
            writeln!(stream, "{sum}")?;
        }
    }
    stream.shutdown(Shutdown::Write)
}

/// The SHA-256 of what `from` gives until its end, in hexadecimal.
pub(crate) fn sha256(from: &mut dyn Read) -> std::io::Result<String> {
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let n = from.read(&mut buffer)?;
            if n == 0 {
                break;
            }
            stdin.write_all(&buffer[..n])?;
        }
    }
    let out = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    Ok(text.split_whitespace().next().unwrap_or_default().to_string())
}

/// A UDP echo server: answers `NAME:` and what came, from the address that it was sent to.
pub(crate) struct UdpEcho {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl UdpEcho {
    /// Starts it on a port of `address`: with DR that must be the VIP, so that replies come from it.
    pub(crate) fn start(ns: &Netns, name: &str, address: IpAddr, port: u16) -> UdpEcho {
        let socket = ns.run(|| UdpSocket::bind(SocketAddr::new(address, port))).expect("a port to listen on");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
        let stop = Arc::new(AtomicBool::new(false));
        let (s, name) = (stop.clone(), name.to_string());
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 65536];
            while !s.load(Ordering::Relaxed) {
                if let Ok((n, from)) = socket.recv_from(&mut buffer) {
                    let mut answer = format!("{name}:").into_bytes();
                    answer.extend_from_slice(&buffer[..n]);
                    // A reply that cannot be sent is a reply that does not arrive, which the client checks.
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        UdpEcho { stop, thread: Some(thread) }
    }
}

impl Drop for UdpEcho {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

/// Writes `bytes` bytes that look random and are the same each time (xorshift64*), and returns their SHA-256.
pub(crate) fn big_file(path: &Path, bytes: usize) -> String {
    let mut file = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(path).expect("a file"));
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..bytes / 8 {
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        file.write_all(&x.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes()).expect("room for the file");
    }
    file.flush().expect("room for the file");
    sha256(&mut std::fs::File::open(path).expect("the file")).expect("sha256sum runs")
}
