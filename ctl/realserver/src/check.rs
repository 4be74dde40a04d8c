//! What is wrong with a real server. [`examine`] is a function of what the machine has; each finding has a sentence and the
//! command that mends it.

pub(crate) mod arp;
mod listen;
mod tunnel;
pub(crate) mod vip;
mod way;

use crate::error::Error;
use crate::machine::Machine;
use crate::rtnl::Rtnl;
use crate::wish::{Mode, Question, check_vips, ingress};

/// One mistake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// A word by which scripts know it.
    pub id: &'static str,
    /// What is wrong and what comes of it, one line.
    pub what: String,
    /// The command that mends it, or what to do where no command can; capitals stand for what only the operator knows.
    pub mend: String,
}

/// The outcome of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The interface at which the director's packets are held to arrive.
    pub dev: String,
    /// What is wrong; empty where all is well.
    pub findings: Vec<Finding>,
}

/// Looks at the machine (the calling thread's network namespace) and says what is wrong for `question`.
///
/// # Errors
/// [`Error::NoSuchInterface`], [`Error::WhichInterface`], [`Error::BadVip`], [`Error::MappedVip`], [`Error::Loopback`],
/// [`Error::NeedsDirector`], and what the system says.
pub fn check(question: &Question) -> Result<Report, Error> {
    let rtnl = Rtnl::open().map_err(|e| Error::os("rtnetlink socket", e))?;
    let machine = Machine::read(&rtnl, &question.ways(), question.mode.tunnels())?;
    examine(&machine, question)
}

/// [`check`] of what the machine has.
pub(crate) fn examine(m: &Machine, q: &Question) -> Result<Report, Error> {
    check_vips(&q.vips)?;
    let at = ingress(m, q.dev.as_deref(), &q.directors)?;
    let mut found = Vec::new();
    if !at.up {
        found.push(Finding {
            id: "interface-down",
            what: format!("{} is down: nothing arrives", at.name),
            mend: format!("ip link set {} up", at.name),
        });
    }
    vip::own_addresses(m, at, &q.vips, &mut found);
    if q.mode == Mode::Nat {
        way::nat(m, q, &mut found)?;
    } else {
        for ip in &q.vips {
            found.extend(vip::missing(m, *ip));
            found.extend(vip::misplaced(m, *ip));
        }
        arp::findings(m, q, at, &mut found);
        if q.mode.tunnels() {
            tunnel::findings(m, q, at, &mut found);
        }
        way::direct(m, q, at, &mut found);
    }
    listen::findings(m, q, at, &mut found);
    Ok(Report { dev: at.name.clone(), findings: found })
}

#[cfg(test)]
mod tests;
