//! Subcommands that ipvsadm does not have.

use std::io::Write;

use ipvs_netlink::{Errno, Reply, Request, SchedulerInfo, Sysctl};

use super::{Failure, Session, Unanswered, listing};
use crate::error::{CliError, EXIT_LIST};
use crate::print::{json, status};

/// Prefix of the kernel's names.
const SYSCTL_PREFIX: &str = "net.ipv4.vs.";

impl Session<'_, '_> {
    /// What the daemon is, its ports, and the data path's counters; with `nonzero` without those that are 0.
    pub(super) fn status(&mut self, nonzero: bool, out: &mut dyn Write) -> Result<(), Failure> {
        let (mut notices, mut queues, mut counters) = (Vec::new(), Vec::new(), Vec::new());
        let mut overview = None;
        self.ask(&Request::GetOverview, &mut |reply| {
            if let Reply::Overview(o) = reply {
                overview = Some(o);
            }
        })?;
        self.ask(&Request::DumpNotices, &mut |reply| {
            if let Reply::Notice(n) = reply {
                notices.push(n);
            }
        })?;
        self.ask(&Request::DumpQueues, &mut |reply| {
            if let Reply::Queue(q) = reply {
                queues.push(q);
            }
        })?;
        self.ask(&Request::GetStatus, &mut |reply| {
            if let Reply::Counter(c) = reply {
                counters.push(c);
            }
        })?;
        let wanted = counters.iter().filter(|c| c.value != 0 || !nonzero);
        if self.json {
            return Ok(json::print_into(out, &json::status(overview.as_ref(), &notices, &queues, wanted))?);
        }
        if let Some(overview) = &overview {
            status::print_overview_into(out, overview)?;
        }
        for notice in &notices {
            writeln!(out, "notice: {}", notice.text)?;
        }
        status::print_queues_into(out, &queues)?;
        for counter in wanted {
            writeln!(out, "{} {}", counter.name, counter.value)?;
        }
        Ok(())
    }

    /// The schedulers that the daemon has, one a line.
    pub(super) fn print_schedulers(&mut self, out: &mut dyn Write) -> Result<(), Failure> {
        if self.json {
            let all: Vec<_> = self.schedulers()?.iter().map(json::scheduler).collect();
            return Ok(json::print_into(out, &serde_json::json!({ "schedulers": all }))?);
        }
        for s in self.schedulers()? {
            writeln!(out, "{:<8} {}", s.name, s.description)?;
        }
        Ok(())
    }

    pub(super) fn schedulers(&mut self) -> Result<Vec<SchedulerInfo>, Unanswered> {
        let mut schedulers = Vec::new();
        self.ask(&Request::DumpSchedulers, &mut |reply| {
            if let Reply::Scheduler(s) = reply {
                schedulers.push(s);
            }
        })?;
        Ok(schedulers)
    }

    /// Settings in the manner of sysctl(8): a name prints, `name=value` changes and prints, nothing prints all.
    pub(super) fn sysctl(&mut self, settings: &[String], out: &mut dyn Write) -> Result<(), Failure> {
        if settings.is_empty() {
            return self.print_sysctl(None, out);
        }
        for setting in settings {
            let (name, value) = match setting.split_once('=') {
                Some((name, value)) => (name.trim_end(), Some(value.trim_start())),
                None => (setting.as_str(), None),
            };
            let name = name.strip_prefix(SYSCTL_PREFIX).unwrap_or(name);
            if let Some(value) = value {
                let sysctl = Sysctl { name: name.to_owned(), value: value.to_owned() };
                self.ask(&Request::SetSysctl(sysctl), &mut |_| {})
                    .map_err(|e| refused(e, name, Some(value)))?;
            }
            self.print_sysctl(Some(name), out)?;
        }
        Ok(())
    }

    fn print_sysctl(&mut self, name: Option<&str>, out: &mut dyn Write) -> Result<(), Failure> {
        let mut settings = Vec::new();
        self.ask(&Request::GetSysctl(name.map(str::to_owned)), &mut |reply| {
            if let Reply::Sysctl(s) = reply {
                settings.push(s);
            }
        })
        .map_err(|e| refused(e, name.unwrap_or_default(), None))?;
        if self.json {
            return Ok(json::print_into(out, &json::sysctls(&settings))?);
        }
        for s in &settings {
            writeln!(out, "{SYSCTL_PREFIX}{} = {}", s.name, s.value)?;
        }
        Ok(())
    }
}

fn refused(e: Unanswered, name: &str, value: Option<&str>) -> CliError {
    let Unanswered::Refused(errno) = e else { return listing(e) };
    let message = match (errno, value) {
        (Errno::ENOENT, _) => format!("no setting `{SYSCTL_PREFIX}{name}'"),
        (Errno::EINVAL | Errno::ERANGE, Some(value)) => {
            format!("{SYSCTL_PREFIX}{name} cannot be `{value}'")
        }
        (Errno::EACCES, _) => format!("{SYSCTL_PREFIX}{name} can only be read"),
        _ => format!("{SYSCTL_PREFIX}{name}: {errno}"),
    };
    CliError { code: EXIT_LIST, message, carries_on: false }
}
