//! Setting a machine up as a real server, and back.

use std::path::Path;

use crate::error::Error;
use crate::machine::{Link, Machine};
use crate::plan::plan;
use crate::record::{Record, Recorded};
use crate::rtnl::Rtnl;
use crate::step::{Reverted, Step};
use crate::wish::Wish;

/// What was taken back, and what was not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Undone {
    /// Commands whose effect is gone.
    pub done: Vec<String>,
    /// What somebody else has changed since and was left so, one line each.
    pub left: Vec<String>,
}

/// Makes what is missing for `wish`, and returns the commands that would have done the same; none where all was there. What
/// was before is written to `record`, added to what is there. With `dry_run` nothing is changed.
///
/// # Errors
/// Every variant of [`Error`] but those of a check; nothing has changed then, or [`Error::HalfUndone`] says what has.
pub fn setup(wish: &Wish, record: &Path, dry_run: bool) -> Result<Vec<String>, Error> {
    let rtnl = Rtnl::open().map_err(|e| Error::os("rtnetlink socket", e))?;
    let machine = Machine::read(&rtnl, &[], wish.mode.tunnels())?;
    let steps = plan(&machine, wish)?;
    let commands = steps.iter().map(Step::command).collect();
    if dry_run || steps.is_empty() {
        return Ok(commands);
    }
    let record = Record::make(record)?;
    let names = named(&machine.links);
    let before = record.read()?.named_as(&names);
    // First, so that even after a crash in the middle everything can be taken back.
    let all = [before.as_slice(), &steps].concat();
    record.write(&Recorded::new(all.clone(), &names))?;
    for (at, step) in steps.iter().enumerate() {
        if let Err(e) = step.apply(&rtnl) {
            let made = steps.get(..at).unwrap_or_default();
            return Err(take_back(&rtnl, &record, (before, &names), made, e));
        }
    }
    if steps.iter().any(|step| matches!(step, Step::Tunnel { .. }))
        && let Ok(names) = interfaces(&rtnl)
    {
        // Devices that were made have an index only now. Where this fails, the record is whole all the same.
        let _ = record.write(&Recorded::new(all, &names));
    }
    Ok(commands)
}

fn named<'l>(links: impl IntoIterator<Item = &'l Link>) -> Vec<(String, u32)> {
    links.into_iter().map(|l| (l.name.clone(), l.index)).collect()
}

/// Names and indices of the interfaces that there are.
fn interfaces(rtnl: &Rtnl) -> Result<Vec<(String, u32)>, Error> {
    let links = rtnl.links().map_err(|e| Error::os("reading the interfaces", e))?;
    Ok(named(links.iter().map(|(link, _)| link)))
}

/// Takes steps back, the last one first, after one has failed by `cause`.
fn take_back(
    rtnl: &Rtnl,
    record: &Record,
    (before, names): (Vec<Step>, &[(String, u32)]),
    made: &[Step],
    cause: Error,
) -> Error {
    let (mut kept, mut left) = (before, Vec::new());
    let mut stuck = Vec::new();
    for step in made.iter().rev() {
        if let Err(e) = step.revert(rtnl) {
            left.push(e.to_string());
            stuck.push(step.clone());
        }
    }
    kept.extend(stuck.into_iter().rev());
    if let Err(e) = record.write(&Recorded::new(kept, names)) {
        left.push(e.to_string());
    }
    if left.is_empty() {
        cause
    } else {
        Error::HalfUndone { cause: cause.to_string(), left: left.join("; ") }
    }
}

/// Takes back what [`setup`] has written to `record`, the last first, and removes the record; nothing where there is none. What cannot be
/// taken back stays in it. An interface that has another name now is the same interface.
///
/// # Errors
/// [`Error::BadRecord`], and what the system says; what could be taken back is.
pub fn undo(record: &Path) -> Result<Undone, Error> {
    if let Err(e) = std::fs::symlink_metadata(record)
        && e.kind() == std::io::ErrorKind::NotFound
    {
        return Ok(Undone::default());
    }
    let rtnl = Rtnl::open().map_err(|e| Error::os("rtnetlink socket", e))?;
    let record = Record::open(record)?;
    let names = interfaces(&rtnl)?;
    let (mut undone, mut stuck, mut failure) = (Undone::default(), Vec::new(), None);
    for step in record.read()?.named_as(&names).into_iter().rev() {
        match step.revert(&rtnl) {
            Ok(Reverted::Done) => undone.done.push(step.command()),
            Ok(Reverted::Left(why)) => undone.left.push(why),
            Err(e) => {
                stuck.push(step);
                failure.get_or_insert(e);
            }
        }
    }
    stuck.reverse();
    record.write(&Recorded::new(stuck, &names))?;
    failure.map_or(Ok(undone), Err)
}
