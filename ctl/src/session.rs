//! Carrying a command out: asking the daemon and printing what it tells.

mod datapath;
mod exec;
mod own;
mod restore;
mod server;

use std::io::{self, Write};
use std::path::Path;

use ipvs_netlink::{
    ClientError, DestEntry, Errno, Reply, Request, SchedulerInfo, Service, ServiceEntry, ServiceKey,
};

use crate::Io;
use crate::cli::{Datapath, Invocation, Sub};
use crate::command::{self, Command};
use crate::error::{CliError, EXIT_OK, EXIT_USAGE};
use crate::grammar::Cmd;
use crate::help::{VERSION_LINE, print_help_into};
use crate::lowargs::LowArgs;
use crate::names::{Names, NoNames};
use crate::print::{self, Format, json};

/// Somebody who answers requests: the daemon behind its socket, or a model in a test.
pub trait Client {
    /// Asks, and hands each reply on as it comes.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the daemon's error number; any other error says that there is no answer.
    fn for_each(&mut self, request: &Request, each: &mut dyn FnMut(Reply)) -> Result<(), ClientError>;
}

impl Client for ipvs_netlink::Client {
    fn for_each(&mut self, request: &Request, each: &mut dyn FnMut(Reply)) -> Result<(), ClientError> {
        ipvs_netlink::Client::for_each(self, request, each)
    }
}

/// Reaches the daemon behind a socket.
pub type Connect<'a> = dyn FnMut(&Path) -> Result<Box<dyn Client + 'a>, ClientError> + 'a;

/// Why a run ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command was not carried out.
    Command(CliError),
    /// Its output could not be written.
    Output(io::Error),
}

impl From<CliError> for Failure {
    fn from(e: CliError) -> Self {
        Failure::Command(e)
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Failure::Output(e)
    }
}

/// A run's connection and names.
pub(crate) struct Session<'a, 'c> {
    socket: &'a Path,
    json: bool,
    names: &'a dyn Names,
    connect: &'a mut Connect<'c>,
    client: Option<Box<dyn Client + 'c>>,
}

impl<'a, 'c> Session<'a, 'c> {
    pub(crate) fn new(
        invocation: &'a Invocation,
        names: &'a dyn Names,
        connect: &'a mut Connect<'c>,
    ) -> Self {
        let Invocation { socket, json, .. } = invocation;
        Session { socket, json: *json, names, connect, client: None }
    }

    /// A command line of ipvsadm's grammar.
    pub(crate) fn ipvsadm(&mut self, words: &[String], io: &mut Io<'_>) -> Result<i32, Failure> {
        let (command, note) = self.command(words)?;
        if self.json && !command.lists() {
            return Err(CliError::usage(
                "--json is for listings (-L and its kinds), which this command is not",
            )
            .into());
        }
        if matches!(command, Command::Restore) {
            return self.restore(io, false);
        }
        self.execute(&command, io.stdout)?;
        if let Some(note) = note {
            // What was asked for is done; there is nobody to tell that the remark was lost.
            let _ = writeln!(io.stderr, "{note}");
        }
        Ok(EXIT_OK)
    }

    /// One of lvsctl's own subcommands.
    pub(crate) fn subcommand(&mut self, sub: &Sub, io: &mut Io<'_>) -> Result<i32, Failure> {
        if self.json && !matches!(sub, Sub::Status { .. } | Sub::Schedulers | Sub::Sysctl { .. }) {
            return Err(
                CliError::usage("--json is for status, schedulers, sysctl and ipvsadm's listings").into()
            );
        }
        if let Sub::Restore { keep_going } = sub {
            return self.restore(io, *keep_going);
        }
        let out = &mut *io.stdout;
        match sub {
            Sub::Restore { .. } => {}
            Sub::Status { nonzero } => self.status(*nonzero, out)?,
            Sub::Schedulers => self.print_schedulers(out)?,
            Sub::Sysctl { settings } => self.sysctl(settings, out)?,
            Sub::Completions { shell } => crate::completions::print_into(out, *shell)?,
            Sub::Exec { words } => return Err(exec::exec(self.socket, words).into()),
            Sub::Datapath(Datapath::Off { pin_dir }) => datapath::off(self.socket, pin_dir.as_deref(), out)?,
            Sub::Realserver(command) => return server::realserver(command, out),
        }
        Ok(EXIT_OK)
    }

    /// What a command line means, and a remark on it.
    fn command(&self, words: &[String]) -> Result<(Command, Option<String>), CliError> {
        let low = LowArgs::parse(words)?;
        let command = Command::from_low(&low, self.names)?;
        let note = command::note(&low, &command);
        Ok((command, note))
    }

    fn execute(&mut self, command: &Command, out: &mut dyn Write) -> Result<(), Failure> {
        match command {
            Command::AddService(s) => self.set_service(Cmd::AddService, &Request::NewService(s.clone()), s),
            Command::EditService(s) => self.set_service(Cmd::EditService, &Request::SetService(s.clone()), s),
            Command::DeleteService(key) => {
                self.change(Cmd::DeleteService, &Request::DelService(*key), |_| key_text(key))
            }
            Command::Clear => self.change(Cmd::Clear, &Request::Flush, |_| String::new()),
            Command::AddServer(key, dest) => {
                self.change(Cmd::AddServer, &Request::NewDest(*key, dest.clone()), |e| {
                    about_dest(key, dest, e)
                })
            }
            Command::EditServer(key, dest) => {
                self.change(Cmd::EditServer, &Request::SetDest(*key, dest.clone()), |e| {
                    about_dest(key, dest, e)
                })
            }
            Command::DeleteServer(key, addr, port) => {
                self.change(Cmd::DeleteServer, &Request::DelDest(*key, *addr, *port), |e| match e {
                    Errno::ENOENT => format!("{} of {}", numeric(*addr, *port), key_text(key)),
                    _ => key_text(key),
                })
            }
            Command::List(None, format) => self.list_all(*format, out),
            Command::List(Some(key), format) => self.list_one(key, *format, out),
            Command::ListConns { format, pe } => self.list_conns(*format, *pe, out),
            Command::ListTimeouts => self.list_timeouts(out),
            Command::ListDaemons => self.list_daemons(out),
            Command::Zero(key) => self
                .change(Cmd::Zero, &Request::Zero(*key), |_| key.as_ref().map(key_text).unwrap_or_default()),
            Command::SetTimeouts(t) => self.change(Cmd::Set, &Request::SetConfig(*t), |_| "--set".to_owned()),
            Command::StartDaemon(d) => {
                self.change(Cmd::StartDaemon, &Request::NewDaemon(d.clone()), |_| d.interface.clone())
            }
            Command::StopDaemon(state) => {
                self.change(Cmd::StopDaemon, &Request::DelDaemon(*state), |_| String::new())
            }
            Command::Save(format) => self.save(*format, out),
            Command::Help => Ok(print_help_into(out)?),
            Command::Version => Ok(writeln!(out, "{VERSION_LINE}")?),
            // Only `ipvsadm` above has the input for it; a line of --restore may not say it.
            Command::Restore => Err(CliError::syntax("-R: not within a restore").into()),
        }
    }

    /// A request that is answered by yes or no.
    fn change(
        &mut self,
        cmd: Cmd,
        request: &Request,
        about: impl FnOnce(Errno) -> String,
    ) -> Result<(), Failure> {
        self.ask(request, &mut |_| {}).map_err(|e| explained(cmd, e, about).into())
    }

    /// As [`Session::change`], with what there is where a name is not known.
    fn set_service(&mut self, cmd: Cmd, request: &Request, s: &Service) -> Result<(), Failure> {
        let Err(e) = self.ask(request, &mut |_| {}) else { return Ok(()) };
        let unknown = matches!(e, Unanswered::Refused(Errno::ENOENT));
        // A daemon that cannot say has no list, and the refusal stands by itself.
        let there = if unknown { self.schedulers().unwrap_or_default() } else { Vec::new() };
        Err(explained(cmd, e, |errno| match errno {
            Errno::ENOENT => unknown_name(s, &there),
            _ => key_text(&s.key),
        })
        .into())
    }

    fn list_all(&mut self, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
        let mut info = None;
        self.ask(&Request::GetInfo, &mut |reply| {
            if let Reply::Info(i) = reply {
                info = Some(i);
            }
        })
        .map_err(listing)?;
        if self.json {
            let version = info.map(|i: ipvs_netlink::Info| {
                let [_, major, minor, patch] = i.version.to_be_bytes();
                serde_json::json!({ "version": format!("{major}.{minor}.{patch}"), "size": i.conn_tab_size })
            });
            let mut list = json::List::begin(out, &version.unwrap_or_default(), "services")?;
            self.each_service(format, &mut |service, dests| list.item(&json::service(service, dests)))?;
            return Ok(list.end()?);
        }
        if let Some(info) = info {
            print::print_version_into(out, &info)?;
        }
        print::print_titles_into(out, format.view)?;
        let names = self.names;
        self.each_service(format, &mut |service, dests| print_block_into(out, service, dests, format, names))
    }

    fn list_one(&mut self, key: &ServiceKey, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
        let mut services = Vec::new();
        self.ask(&Request::GetService(*key), &mut |reply| {
            if let Reply::Service(s) = reply {
                services.push(s);
            }
        })
        .map_err(|e| explained(Cmd::List, e, |_| key_text(key)))?;
        let dests = self.dests(key, format)?;
        if self.json {
            let all: Vec<_> = services.iter().map(|s| json::service(s, &dests)).collect();
            return Ok(json::print_into(out, &serde_json::json!({ "services": all }))?);
        }
        print::print_titles_into(out, format.view)?;
        for service in &services {
            print_block_into(out, service, &dests, format, self.names)?;
        }
        Ok(())
    }

    fn list_conns(&mut self, format: Format, pe: bool, out: &mut dyn Write) -> Result<(), Failure> {
        if self.json {
            let mut list = json::List::begin(out, &serde_json::Value::Null, "connections")?;
            let mut written = Ok(());
            self.ask(&Request::DumpConns, &mut |reply| {
                if let (Reply::Conn(conn), Ok(())) = (reply, &written) {
                    written = list.item(&json::conn(&conn));
                }
            })
            .map_err(listing)?;
            written?;
            return Ok(list.end()?);
        }
        let names = self.names;
        let mut written = Ok(());
        let mut titles = false;
        self.ask(&Request::DumpConns, &mut |reply| {
            // Connections are many: each is printed as it comes.
            if let (Reply::Conn(conn), Ok(())) = (reply, &written) {
                let first = !std::mem::replace(&mut titles, true);
                let above = if first { print::print_conn_titles_into(out, pe) } else { Ok(()) };
                written = above.and_then(|()| print::print_conn_into(out, &conn, format.numeric, names));
            }
        })
        .map_err(listing)?;
        written?;
        if !titles {
            print::print_conn_titles_into(out, pe)?;
        }
        Ok(())
    }

    fn list_timeouts(&mut self, out: &mut dyn Write) -> Result<(), Failure> {
        let mut timeouts = None;
        self.ask(&Request::GetConfig, &mut |reply| {
            if let Reply::Config(t) = reply {
                timeouts = Some(t);
            }
        })
        .map_err(listing)?;
        match timeouts {
            Some(timeouts) if self.json => Ok(json::print_into(out, &json::timeouts(&timeouts))?),
            Some(timeouts) => Ok(print::print_timeouts_into(out, &timeouts)?),
            None => {
                Err(listing(Unanswered::Broken("the daemon's answer lacks the timeouts".to_owned())).into())
            }
        }
    }

    fn list_daemons(&mut self, out: &mut dyn Write) -> Result<(), Failure> {
        let mut daemons = Vec::new();
        self.ask(&Request::DumpDaemons, &mut |reply| {
            if let Reply::Daemon(d) = reply {
                daemons.push(d);
            }
        })
        .map_err(listing)?;
        if self.json {
            let all: Vec<_> = daemons.iter().map(json::daemon).collect();
            return Ok(json::print_into(out, &serde_json::json!({ "daemons": all }))?);
        }
        for daemon in &daemons {
            print::print_daemon_into(out, daemon)?;
        }
        Ok(())
    }

    fn save(&mut self, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
        let names = self.names;
        self.each_service(format, &mut |entry, dests| {
            let service = &entry.service;
            print::print_service_rule_into(out, service, format.numeric, names)?;
            for dest in dests {
                print::print_dest_rule_into(out, &service.key, &dest.dest, format.numeric, names)?;
            }
            Ok(())
        })
    }

    /// All services with their servers, in the order of the format.
    fn each_service(
        &mut self,
        format: Format,
        each: &mut dyn FnMut(&ServiceEntry, &[DestEntry]) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let mut services = Vec::new();
        self.ask(&Request::DumpServices, &mut |reply| {
            if let Reply::Service(s) = reply {
                services.push(s);
            }
        })
        .map_err(listing)?;
        if format.sort {
            services = print::sort_services(services);
        }
        for service in &services {
            match self.dests(&service.service.key, format) {
                Ok(dests) => each(service, &dests)?,
                // Deleted since it was listed.
                Err(Unanswered::Refused(Errno::ESRCH)) => {}
                Err(e) => return Err(listing(e).into()),
            }
        }
        Ok(())
    }

    fn dests(&mut self, key: &ServiceKey, format: Format) -> Result<Vec<DestEntry>, Unanswered> {
        let mut dests = Vec::new();
        self.ask(&Request::DumpDests(*key), &mut |reply| {
            if let Reply::Dest(d) = reply {
                dests.push(d);
            }
        })?;
        Ok(if format.sort { print::sort_dests(dests) } else { dests })
    }

    /// Asks the daemon, which is connected to at the first question.
    fn ask(&mut self, request: &Request, each: &mut dyn FnMut(Reply)) -> Result<(), Unanswered> {
        let client = match &mut self.client {
            Some(client) => client,
            none => none.insert((self.connect)(self.socket)?),
        };
        Ok(client.for_each(request, each)?)
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The daemon says no.
    Refused(Errno),
    /// There is no daemon, or none that can be understood. One line.
    Broken(String),
}

impl From<ClientError> for Unanswered {
    fn from(e: ClientError) -> Self {
        match &e {
            ClientError::Refused(errno) => Unanswered::Refused(*errno),
            ClientError::Io { path, source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Unanswered::Broken(format!(
                    "{}: permission denied: run lvsctl as root, or as a member of the group that owns this socket",
                    path.display()
                ))
            }
            _ => Unanswered::Broken(e.to_string()),
        }
    }
}

impl From<Unanswered> for Failure {
    fn from(e: Unanswered) -> Self {
        listing(e).into()
    }
}

fn explained(cmd: Cmd, e: Unanswered, about: impl FnOnce(Errno) -> String) -> CliError {
    match e {
        Unanswered::Refused(errno) => CliError::refused(cmd, errno, &about(errno)),
        Unanswered::Broken(message) => CliError { code: EXIT_USAGE, message, carries_on: false },
    }
}

fn listing(e: Unanswered) -> CliError {
    explained(Cmd::List, e, |_| String::new())
}

fn print_block_into(
    out: &mut dyn Write,
    service: &ServiceEntry,
    dests: &[DestEntry],
    format: Format,
    names: &dyn Names,
) -> io::Result<()> {
    print::print_service_into(out, service, format, names)?;
    for dest in dests {
        print::print_dest_into(out, &service.service.key, dest, format, names)?;
    }
    Ok(())
}

fn numeric(addr: std::net::IpAddr, port: u16) -> String {
    print::endpoint(addr, port, 0, true, &NoNames)
}

fn key_text(key: &ServiceKey) -> String {
    match *key {
        ServiceKey::Addr { protocol, addr, port } => {
            format!("{} {}", print::protocol_name(protocol), numeric(addr, port))
        }
        ServiceKey::Fwmark { mark, af } => {
            format!("firewall mark {mark}, {}", if af == ipvs_netlink::Af::V6 { "IPv6" } else { "IPv4" })
        }
    }
}

/// Which name of a service is not known, by the schedulers that are there.
fn unknown_name(s: &Service, there: &[SchedulerInfo]) -> String {
    let found = there.iter().any(|t| t.name == s.scheduler);
    match &s.pe_name {
        Some(pe) if found => format!("persistence engine `{pe}'"),
        Some(pe) if there.is_empty() => format!("scheduler `{}', persistence engine `{pe}'", s.scheduler),
        _ if there.is_empty() => format!("scheduler `{}'", s.scheduler),
        _ => {
            let names: Vec<&str> = there.iter().map(|t| t.name.as_str()).collect();
            format!("scheduler `{}'; this daemon has {}", s.scheduler, names.join(" "))
        }
    }
}

/// What a refusal of a server is about.
fn about_dest(key: &ServiceKey, d: &ipvs_netlink::Dest, errno: Errno) -> String {
    match errno {
        Errno::ESRCH => key_text(key),
        Errno::ERANGE if d.lower > d.upper => {
            format!("-y {} is above -x {}", d.lower, d.upper)
        }
        _ => format!("{} of {}", numeric(d.addr, d.port), key_text(key)),
    }
}
