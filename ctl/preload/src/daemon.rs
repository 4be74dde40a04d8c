//! What the daemon is asked for on behalf of files.

use std::ffi::c_int;
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use ipvs_netlink::{Client, ClientError, Reply, Request, Stats, Sysctl, procfs};

use crate::socket_path;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no answer, as an error number.
fn number(e: &ClientError) -> c_int {
    match e {
        ClientError::Refused(e) => e.0,
        ClientError::Io { source, .. } => match source.raw_os_error() {
            Some(libc::EACCES) => libc::EACCES,
            _ => libc::ENOENT,
        },
        _ => libc::ENOENT,
    }
}

fn connect() -> Result<Client, c_int> {
    Client::connect(socket_path(), TIMEOUT).map_err(|e| number(&e))
}

/// Whether there is one.
pub(crate) fn is_there() -> Result<(), c_int> {
    connect().map(|_| ())
}

/// The value of a setting.
pub(crate) fn setting(name: &str) -> Result<String, c_int> {
    let mut value = Err(libc::ENOENT);
    let request = Request::GetSysctl(Some(name.to_owned()));
    let asked = connect()?.for_each(&request, &mut |reply| {
        if let Reply::Sysctl(s) = reply {
            value = Ok(s.value);
        }
    });
    asked.map_err(|e| number(&e)).and(value)
}

/// Changes a setting.
pub(crate) fn set(name: &str, value: &str) -> Result<(), c_int> {
    let request = Request::SetSysctl(Sysctl { name: name.to_owned(), value: value.to_owned() });
    connect()?.request(&request).map(|_| ()).map_err(|e| number(&e))
}

/// Writes what a file below `/proc/net` says.
pub(crate) fn write_file(name: &str, fd: OwnedFd) -> Result<OwnedFd, c_int> {
    let mut out = BufWriter::new(std::fs::File::from(fd));
    let mut client = connect()?;
    let written = match name {
        "ip_vs" => table(&mut client, &mut out),
        "ip_vs_conn" => connections(&mut client, &mut out, procfs::CONN_TITLE, procfs::conn),
        "ip_vs_conn_sync" => connections(&mut client, &mut out, procfs::SYNC_TITLE, procfs::conn_sync),
        "ip_vs_stats" => totals(&mut client).map(|s| procfs::stats(&mut out, &s)),
        "ip_vs_stats_percpu" => totals(&mut client).map(|s| procfs::stats_percpu(&mut out, &s)),
        _ => Ok(procfs::app(&mut out)),
    };
    written?.map_err(|_| libc::ENOMEM)?;
    let file = out.into_inner().map_err(|_| libc::ENOMEM)?;
    Ok(file.into())
}

type Written = Result<io::Result<()>, c_int>;

fn table(client: &mut Client, out: &mut dyn Write) -> Written {
    let ask = |client: &mut Client, request| client.request(&request).map_err(|e| number(&e));
    let info = ask(client, Request::GetInfo)?.into_iter().find_map(|r| match r {
        Reply::Info(info) => Some(info),
        _ => None,
    });
    let Some(info) = info else { return Err(libc::EIO) };
    if let Err(e) = procfs::table_title(out, &info) {
        return Ok(Err(e));
    }
    for service in ask(client, Request::DumpServices)? {
        let Reply::Service(service) = service else { continue };
        let dests = ask(client, Request::DumpDests(service.service.key))?;
        let dests = dests.into_iter().filter_map(|r| if let Reply::Dest(d) = r { Some(d) } else { None });
        if let Err(e) = procfs::service(out, &service, dests) {
            return Ok(Err(e));
        }
    }
    Ok(Ok(()))
}

fn connections(
    client: &mut Client,
    out: &mut dyn Write,
    title: &str,
    line: fn(&mut dyn Write, &ipvs_netlink::ConnEntry) -> io::Result<()>,
) -> Written {
    let mut written = writeln!(out, "{title}");
    client
        .for_each(&Request::DumpConns, &mut |reply| {
            if let (Reply::Conn(conn), true) = (reply, written.is_ok()) {
                written = line(out, &conn);
            }
        })
        .map_err(|e| number(&e))?;
    Ok(written)
}

/// The sum over all services.
fn totals(client: &mut Client) -> Result<Stats, c_int> {
    let mut sum = Stats::default();
    client
        .for_each(&Request::DumpServices, &mut |reply| {
            if let Reply::Service(s) = reply {
                sum += s.stats;
            }
        })
        .map_err(|e| number(&e))?;
    Ok(sum)
}
