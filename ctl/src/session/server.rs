//! Subcommands for real servers: they act on this machine, and ask no daemon.

use std::io::Write;
use std::path::{Path, PathBuf};

use realserver::{Error, Held, Loaded, Mode, Question, Report, Wish, XdpKind};

use super::Failure;
use crate::cli::{Check, CheckMode, RealServer, Setup, SetupMode};
use crate::error::{CliError, EXIT_LIST, EXIT_OK, EXIT_REFUSED};

/// Carries one out and gives the exit status.
pub(super) fn realserver(command: &RealServer, out: &mut dyn Write) -> Result<i32, Failure> {
    match command {
        RealServer::Setup(words) => setup(words, out)?,
        RealServer::Check(words) => return check(words, out),
        RealServer::Undo { record } => undo(record.as_deref(), out)?,
        RealServer::Decap { dev, off: false, pin_dir } => {
            let loaded = realserver::load(dev, pin_dir).map_err(refused)?;
            writeln!(out, "{}", told(dev, &loaded))?;
        }
        RealServer::Decap { dev, off: true, pin_dir } => {
            let what = match realserver::unload(dev, pin_dir).map_err(refused)? {
                true => "decapsulator removed",
                false => "no decapsulator was there",
            };
            writeln!(out, "{dev}: {what}")?;
        }
    }
    Ok(EXIT_OK)
}

fn record_file(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let found = given.map_or_else(realserver::default_record, |path| Ok(path.to_owned()));
    Ok(found.map_err(refused)?)
}

fn setup(words: &Setup, out: &mut dyn Write) -> Result<(), Failure> {
    let wish = Wish {
        vips: words.vip.clone(),
        mode: match words.mode {
            SetupMode::Dr => Mode::Dr,
            SetupMode::Ipip => Mode::Ipip,
            SetupMode::Gre => Mode::Gre,
        },
        dev: words.dev.clone(),
        kernel_tunnel: words.kernel_tunnel,
        advmss: !words.no_advmss,
        pin_dir: words.pin_dir.clone(),
    };
    let record = record_file(words.record.as_deref())?;
    let commands = realserver::setup(&wish, &record, words.dry_run).map_err(refused)?;
    for command in &commands {
        writeln!(out, "{command}")?;
    }
    if commands.is_empty() {
        writeln!(out, "nothing to do")?;
    }
    Ok(())
}

fn undo(record: Option<&Path>, out: &mut dyn Write) -> Result<(), Failure> {
    let record = record_file(record)?;
    let undone = realserver::undo(&record).map_err(refused)?;
    for command in &undone.done {
        writeln!(out, "undone: {command}")?;
    }
    for why in &undone.left {
        writeln!(out, "left: {why}")?;
    }
    if undone.done.is_empty() && undone.left.is_empty() {
        writeln!(out, "nothing to undo: there is no record {}", record.display())?;
    }
    Ok(())
}

fn check(words: &Check, out: &mut dyn Write) -> Result<i32, Failure> {
    let question = Question {
        vips: words.vip.clone(),
        mode: match words.mode {
            CheckMode::Dr => Mode::Dr,
            CheckMode::Ipip => Mode::Ipip,
            CheckMode::Gre => Mode::Gre,
            CheckMode::Nat => Mode::Nat,
        },
        dev: words.dev.clone(),
        directors: words.director.clone(),
        clients: words.client.clone(),
        ports: words.port.clone(),
    };
    let report = realserver::check(&question).map_err(refused)?;
    if words.json {
        writeln!(out, "{}", json(&question, &report))?;
    } else {
        for finding in &report.findings {
            writeln!(out, "{}: {}\n  mend: {}", finding.id, finding.what, finding.mend)?;
        }
        if report.findings.is_empty() {
            let vips: Vec<String> = question.vips.iter().map(ToString::to_string).collect();
            writeln!(out, "all is well: {} by {} at {}", vips.join(", "), question.mode.name(), report.dev)?;
        }
    }
    Ok(if report.findings.is_empty() { EXIT_OK } else { EXIT_LIST })
}

fn json(question: &Question, report: &Report) -> serde_json::Value {
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|f| serde_json::json!({ "id": f.id, "what": f.what, "mend": f.mend }))
        .collect();
    serde_json::json!({
        "ok": findings.is_empty(),
        "mode": question.mode.name(),
        "dev": report.dev,
        "findings": findings,
    })
}

fn told(dev: &str, loaded: &Loaded) -> String {
    let what = if loaded.replaced { "replaced" } else { "loaded" };
    let kind = match loaded.kind {
        XdpKind::Native => "native",
        XdpKind::Generic => "generic",
        XdpKind::Offloaded => "offloaded",
    };
    let addresses: Vec<String> = loaded.addresses.iter().map(ToString::to_string).collect();
    let held = match &loaded.held {
        Held::Pin(path) => format!("pinned at {}", path.display()),
        Held::Interface => "held by the interface".to_owned(),
    };
    format!("{dev}: decapsulator {what} ({kind} XDP, {held}) for {}", addresses.join(", "))
}

fn refused(e: Error) -> CliError {
    CliError { code: EXIT_REFUSED, message: e.to_string(), carries_on: false }
}
