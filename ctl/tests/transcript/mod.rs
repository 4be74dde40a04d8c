//! Replays a transcript of ipvsadm against whatever answers lvsctl: the model of `ipvs_netlink::memory` here, the
//! daemon's director where that is at hand.
//!
//! The transcript (`tests/golden/a-cli.txt`) was recorded from ipvsadm 1.31 on kernel 6.1: `$ ` and a shell command,
//! what it printed, `2> ` before lines of standard error, `[exit N]`. Standard output and exit status must be equal,
//! and an error line must be there exactly when there was one; its wording is lvsctl's own.

// Several test binaries share this, each with its own part of it.
#![allow(dead_code, unreachable_pub)]

use std::collections::HashMap;
use std::io::Cursor;
use std::net::IpAddr;

use ipvs_netlink::{
    Af, Backend, ClientError, Daemon, Envelope, Errno, Exchange, ExchangeError, FAMILY_IPVS, FAMILY_LVSD,
    Family, Reply, Request, serve,
};
use lvsctl::names::{Names, Services};
use lvsctl::{Client, Io, run};

/// A command of the transcript and what it gave.
#[derive(Clone, Debug)]
pub struct Step {
    /// Line of the command in the file.
    pub line: usize,
    /// The shell command.
    pub command: String,
    /// Standard output.
    pub stdout: String,
    /// Standard error, without the marks.
    pub stderr: Vec<String>,
    /// Exit status.
    pub code: i32,
}

/// Reads a transcript; each step with the heading (`# …`) of its section.
pub fn parse(text: &str) -> Vec<(String, Step)> {
    let mut section = String::new();
    let mut steps = Vec::new();
    let mut open: Option<Step> = None;
    for (at, line) in text.lines().enumerate() {
        match &mut open {
            None => {
                if let Some(command) = line.strip_prefix("$ ") {
                    open = Some(Step {
                        line: at + 1,
                        command: command.to_owned(),
                        stdout: String::new(),
                        stderr: Vec::new(),
                        code: 0,
                    });
                } else if let Some(heading) = line.strip_prefix("# ") {
                    section = heading.to_owned();
                }
            }
            Some(step) => {
                if let Some(code) = line.strip_prefix("[exit ").and_then(|l| l.strip_suffix(']')) {
                    step.code = code.parse().expect("a status");
                    steps.push((section.clone(), open.take().expect("it is open")));
                } else if let Some(error) = line.strip_prefix("2> ") {
                    step.stderr.push(error.to_owned());
                } else {
                    step.stdout.push_str(line);
                    step.stdout.push('\n');
                }
            }
        }
    }
    assert!(open.is_none(), "the transcript ends within a command");
    steps
}

/// What a run of lvsctl gave.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Exit status.
    pub code: i32,
}

/// lvsctl with a way to the director, names, and the files that the transcript's commands write.
pub struct Shell<'a> {
    connect: Box<dyn Fn() -> Box<dyn Client + 'a> + 'a>,
    names: RecordedNames,
    files: HashMap<String, String>,
}

impl<'a> Shell<'a> {
    /// A shell whose every command connects anew, as processes do.
    pub fn new(connect: impl Fn() -> Box<dyn Client + 'a> + 'a) -> Shell<'a> {
        Shell { connect: Box::new(connect), names: RecordedNames::new(), files: HashMap::new() }
    }

    /// A shell over a backend in this process, as the recording machine was.
    pub fn over(backend: &'a dyn Backend) -> Shell<'a> {
        Shell::new(move || Box::new(InProcess { backend }))
    }

    /// Runs lvsctl with these words.
    pub fn lvsctl(&self, words: &[String], stdin: &str) -> Outcome {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut stdin = Cursor::new(stdin.as_bytes());
        let mut io = Io { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
        let code = run(words, &mut io, &self.names, &mut |_| Ok((self.connect)()));
        Outcome {
            stdout: String::from_utf8(stdout).expect("output is UTF-8"),
            stderr: String::from_utf8(stderr).expect("errors are UTF-8"),
            code,
        }
    }

    /// Runs a line of the transcript: what its few shell constructs need, no more.
    pub fn line(&mut self, line: &str) -> Outcome {
        let mut all = Outcome::default();
        for command in split_outside_quotes(line, ";") {
            let one = self.pipeline(command.trim());
            all.stdout += &one.stdout;
            all.stderr += &one.stderr;
            all.code = one.code;
        }
        all
    }

    fn pipeline(&mut self, command: &str) -> Outcome {
        if let Some((test, echo)) = command.split_once(" && ") {
            assert_eq!(test, r#"[ "$(cat save)" = "$(cat save2)" ]"#);
            let same = self.files["save"] == self.files["save2"];
            return if same { self.line(echo) } else { Outcome { code: 1, ..Outcome::default() } };
        }
        let mut input = String::new();
        let mut outcome = Outcome::default();
        for part in split_outside_quotes(command, "|") {
            let one = self.simple(part.trim(), &input);
            outcome.stderr += &one.stderr;
            outcome.code = one.code;
            input = one.stdout;
        }
        outcome.stdout = input;
        outcome
    }

    fn simple(&mut self, command: &str, stdin: &str) -> Outcome {
        let words = words(command);
        let mut args = Vec::new();
        let (mut input, mut output) = (stdin.to_owned(), None);
        let mut rest = words.into_iter();
        while let Some(word) = rest.next() {
            match word.as_str() {
                "<" => input = self.files[&rest.next().expect("a file")].clone(),
                ">" => output = rest.next(),
                _ => args.push(word),
            }
        }
        let (program, args) = args.split_first().expect("a program");
        let mut outcome = match program.as_str() {
            "ipvsadm" => self.lvsctl(args, &input),
            // What these two scripts do.
            "ipvsadm-save" => self.lvsctl(&[&["-S".to_owned()], args].concat(), &input),
            "ipvsadm-restore" => {
                let cleared = self.lvsctl(&["-C".to_owned()], "");
                assert_eq!(cleared.code, 0);
                self.lvsctl(&["-R".to_owned()], &input)
            }
            "cat" => Outcome { stdout: self.files[&args[0]].clone(), ..Outcome::default() },
            "echo" => Outcome { stdout: args.join(" ") + "\n", ..Outcome::default() },
            "printf" => {
                assert_eq!(args[0], "%s\\n");
                Outcome { stdout: args[1..].iter().map(|a| format!("{a}\n")).collect(), ..Outcome::default() }
            }
            other => panic!("the transcript has an unforeseen program: {other}"),
        };
        if let Some(file) = output {
            self.files.insert(file, std::mem::take(&mut outcome.stdout));
        }
        outcome
    }
}

/// Splits at a character that stands outside double quotes.
fn split_outside_quotes<'t>(text: &'t str, at: &str) -> Vec<&'t str> {
    let at = at.chars().next().expect("a character");
    let mut quoted = false;
    text.split(|c: char| {
        quoted ^= c == '"';
        c == at && !quoted
    })
    .collect()
}

/// Words of a shell command with double quotes; `<` and `>` are words.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for c in command.chars() {
        match c {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' if !quoted => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// A client of a backend without a socket between, which refuses what the recording machine did.
pub struct InProcess<'a> {
    /// What answers.
    pub backend: &'a dyn Backend,
}

impl Client for InProcess<'_> {
    fn for_each(&mut self, request: &Request, each: &mut dyn FnMut(Reply)) -> Result<(), ClientError> {
        let replies = as_recorded(request).and_then(|request| exchange(self.backend, &request));
        replies.map_err(ClientError::Refused)?.into_iter().for_each(each);
        Ok(())
    }
}

/// One request through the codec and the server's half, as over the socket.
fn exchange(backend: &dyn Backend, request: &Request) -> Result<Vec<Reply>, Errno> {
    let family = if request.family() == Family::Lvsd { FAMILY_LVSD } else { FAMILY_IPVS };
    let envelope = Envelope { family, seq: 1, pid: 0 };
    let (mut exchange, datagram) = Exchange::new(request, envelope).expect("lvsctl's names fit");
    let mut replies = Vec::new();
    for answer in serve(backend, &datagram) {
        match exchange.feed(&answer, &mut |reply| replies.push(reply)) {
            Ok(true) => return Ok(replies),
            Ok(false) => {}
            Err(ExchangeError::Refused(errno)) => return Err(errno),
            Err(e) => panic!("{request:?}: {e}"),
        }
    }
    panic!("{request:?}: the answer has no end")
}

/// The names that the recording machine had.
struct RecordedNames {
    services: Services,
}

impl RecordedNames {
    fn new() -> RecordedNames {
        let text = "domain 53/tcp\ndomain 53/udp\nhttp 80/tcp www\nhttps 443/tcp\nhttps 443/udp\nsip 5060/tcp\n\
                    sip 5060/udp\nhttp-alt 8080/tcp webcache\nhttp-alt 8080/udp\n";
        RecordedNames { services: Services::parse(text) }
    }
}

impl Names for RecordedNames {
    fn addr(&self, name: &str, _: Option<Af>) -> Option<IpAddr> {
        (name == "localhost").then(|| IpAddr::from([127, 0, 0, 1]))
    }
    fn port(&self, name: &str, protocol: u8) -> Option<u16> {
        self.services.port(name, protocol)
    }
    fn name_of_addr(&self, addr: IpAddr) -> Option<String> {
        (addr == IpAddr::from([127, 0, 0, 1])).then(|| "localhost".to_owned())
    }
    fn name_of_port(&self, port: u16, protocol: u8) -> Option<String> {
        self.services.name(port, protocol).map(str::to_owned)
    }
}

/// A request as the recording machine would have taken it where a backend may differ: it had no module for `twos`, one
/// interface `d0`, and messages of a daemon in an IPv6 group were shorter by the larger header.
fn as_recorded(request: &Request) -> Result<Request, Errno> {
    match request {
        Request::NewService(s) | Request::SetService(s) if s.scheduler == "twos" => Err(Errno::ENOENT),
        Request::NewDaemon(d) if d.interface != "d0" => Err(Errno::ENODEV),
        Request::NewDaemon(d) if d.maxlen == 0 && d.group.is_some_and(|g| g.is_ipv6()) => {
            Ok(Request::NewDaemon(Daemon { maxlen: 1500 - 48, ..d.clone() }))
        }
        other => Ok(other.clone()),
    }
}

/// Compares an outcome with a step; `Err` says how they differ.
pub fn compare(step: &Step, outcome: &Outcome) -> Result<(), String> {
    let help = step.stdout == "(its help text: left out)\n";
    let stdout_equal = if help { outcome.stdout.contains("Commands") } else { outcome.stdout == step.stdout };
    // A note is no error: what was asked for was done.
    let errors = outcome.stderr.lines().filter(|l| !l.starts_with("note: ")).count();
    let error_equal = step.stderr.is_empty() == (errors == 0);
    if stdout_equal && error_equal && step.code == outcome.code {
        return Ok(());
    }
    Err(format!("line {}: {}\nexpected {step:#?}\ngot {outcome:#?}", step.line, step.command))
}

/// Replays all steps that a backend can answer and gives how many there were; panics with all differences.
pub fn replay(text: &str, shell: &mut Shell<'_>) -> usize {
    let mut differences = Vec::new();
    let mut replayed = 0;
    for (section, step) in parse(text) {
        // The kernel's own: files of /proc, and who may ask it from where.
        if section.starts_with("unprivileged user") || step.command.starts_with("cat /proc/") {
            continue;
        }
        replayed += 1;
        let outcome = shell.line(&step.command);
        differences.extend(compare(&step, &outcome).err());
    }
    let shown = differences.iter().take(5).cloned().collect::<Vec<_>>().join("\n\n");
    assert!(differences.is_empty(), "{} of {replayed} differ; the first:\n{shown}", differences.len());
    replayed
}
