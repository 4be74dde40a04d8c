//! What clients do: real ones (curl), and connections of our own that stay open.
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use crate::netns::Netns;

/// How long a client waits for anything before it calls it lost. Long enough for two retransmissions.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Makes `n` HTTP requests with curl, each on a connection of its own (port 80's nginx closes after each), one after
/// the other, and returns the answers in order. Fails the test when a request fails.
#[track_caller]
pub(crate) fn curl(ns: &Netns, to: SocketAddr, n: usize) -> Vec<String> {
    let url = format!("http://{to}/?[1-{n}]");
    let out = ns
        .command("curl")
        .args(["--silent", "--show-error", "--fail", "--fail-early", "--noproxy", "*"])
        .args(["--connect-timeout", "10", "--max-time", "20"])
        .arg(&url)
        .output()
        .expect("curl starts");
    let answers: Vec<String> = String::from_utf8_lossy(&out.stdout).lines().map(String::from).collect();
    assert!(
        out.status.success() && answers.len() == n,
        "curl {url}: {}, {} of {n} answers: {}",
        out.status,
        answers.len(),
        String::from_utf8_lossy(&out.stderr)
    );
    answers
}

/// Fetches a file with curl and returns the SHA-256 of what came.
#[track_caller]
pub(crate) fn curl_sha256(ns: &Netns, to: SocketAddr, path: &str) -> String {
    let url = format!("http://{to}{path}");
    let script = "set -o pipefail; curl --silent --show-error --fail --noproxy '*' --globoff --connect-timeout 10 --max-time 60 \"$0\" \
                  | sha256sum";
    let text = crate::netns::run(ns.command("bash").args(["-c", script, &url]));
    text.split_whitespace().next().unwrap_or_default().to_string()
}

/// Connects from inside `ns`.
pub(crate) fn connect(ns: &Netns, to: SocketAddr, patience: Duration) -> std::io::Result<TcpStream> {
    let stream = ns.run(|| TcpStream::connect_timeout(&to, patience))?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A connection to nginx that stays open.
pub(crate) struct KeptAlive {
    stream: BufReader<TcpStream>,
}

impl KeptAlive {
    /// Connects to a keep-alive nginx.
    pub(crate) fn open(ns: &Netns, to: SocketAddr) -> std::io::Result<KeptAlive> {
        Ok(KeptAlive { stream: BufReader::with_capacity(512, connect(ns, to, PATIENCE)?) })
    }

    /// Makes a request and returns the server's name.
    pub(crate) fn get(&mut self) -> std::io::Result<String> {
        self.send()?;
        self.receive()
    }

    /// Sends a request.
    pub(crate) fn send(&mut self) -> std::io::Result<()> {
        self.stream.get_mut().write_all(b"GET / HTTP/1.1\r\nHost: lvsd.test\r\n\r\n")
    }

    /// Reads the answer.
    pub(crate) fn receive(&mut self) -> std::io::Result<String> {
        let bad = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_string());
        let mut length = None;
        let mut line = String::new();
        let mut first = true;
        loop {
            line.clear();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let text = line.trim_end();
            if std::mem::take(&mut first) && !text.starts_with("HTTP/1.1 200") {
                return Err(bad(text));
            }
            if text.is_empty() {
                break;
            }
            if let Some(v) = text.to_ascii_lowercase().strip_prefix("content-length:") {
                length = v.trim().parse::<usize>().ok();
            }
        }
        let mut body = vec![0; length.ok_or_else(|| bad("no length"))?];
        self.stream.read_exact(&mut body)?;
        Ok(String::from_utf8_lossy(&body).trim_end().to_string())
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }
}

/// A connection to a [`crate::servers::TcpServer`] that echoes.
pub(crate) struct Echo {
    stream: TcpStream,
    /// The server's name.
    pub(crate) server: String,
}

impl Echo {
    /// Connects and reads the server's name.
    pub(crate) fn open(ns: &Netns, to: SocketAddr) -> std::io::Result<Echo> {
        Echo::open_within(ns, to, PATIENCE)
    }

    /// The same with another patience.
    pub(crate) fn open_within(ns: &Netns, to: SocketAddr, patience: Duration) -> std::io::Result<Echo> {
        let mut stream = connect(ns, to, patience)?;
        let server = read_line(&mut stream)?;
        Ok(Echo { stream, server })
    }

    /// Sends bytes and waits until they are back.
    pub(crate) fn say(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)?;
        self.hear(bytes)
    }

    /// Sends bytes and waits for nothing.
    pub(crate) fn shout(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Waits until `bytes` are back.
    pub(crate) fn hear(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let mut back = vec![0; bytes.len()];
        self.stream.read_exact(&mut back)?;
        if back == bytes {
            Ok(())
        } else {
            Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "the echo is not what was sent"))
        }
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> &TcpStream {
        &self.stream
    }
}

/// A line of at most 256 bytes, without its end.
pub(crate) fn read_line(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < 256 {
        stream.read_exact(&mut byte)?;
        if byte[0] == b'\n' {
            break;
        }
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Uploads `file` (of `bytes` bytes) to a [`crate::servers::TcpServer`] that is a sink; returns its name and the
/// SHA-256 that it found.
pub(crate) fn upload(
    ns: &Netns,
    to: SocketAddr,
    file: &std::path::Path,
    bytes: u64,
) -> std::io::Result<(String, String)> {
    let mut stream = connect(ns, to, PATIENCE)?;
    let server = read_line(&mut stream)?;
    stream.write_all(&bytes.to_be_bytes())?;
    let sent = std::io::copy(&mut std::fs::File::open(file)?, &mut stream)?;
    assert_eq!(sent, bytes, "the file's length");
    let sum = read_line(&mut stream)?;
    Ok((server, sum))
}

/// A UDP socket of the client, connected to `to`.
pub(crate) fn udp(ns: &Netns, to: SocketAddr) -> UdpSocket {
    let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().expect("an address");
    let socket = ns.run(|| UdpSocket::bind(any)).expect("a socket");
    socket.connect(to).expect("a route");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

/// Sends a datagram to a UDP echo server, and returns the server's name when the payload has come back whole.
pub(crate) fn udp_ask(socket: &UdpSocket, payload: &[u8]) -> std::io::Result<String> {
    socket.send(payload)?;
    let mut buffer = vec![0; 65536];
    let n = socket.recv(&mut buffer)?;
    let answer = &buffer[..n];
    let colon = answer.iter().position(|b| *b == b':').unwrap_or(0);
    if answer.get(colon + 1..) != Some(payload) {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "the echo is not what was sent"));
    }
    Ok(String::from_utf8_lossy(&answer[..colon]).into_owned())
}
