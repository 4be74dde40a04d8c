//! `lvsctl exec`: runs an unmodified program under the preload library, by which its IPVS requests reach lvsd.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::read::elf::{ElfFile32, ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, elf};

use crate::error::CliError;

/// The library's file.
const LIBRARY: &str = "liblvsd_preload.so";
/// Exit status where the program is there and cannot be run so, and where it is not there, as env(1) has them.
const EXIT_CANNOT: i32 = 126;
const EXIT_NOT_FOUND: i32 = 127;
/// Longest program that is looked into, and how many interpreters deep.
const LOOK: u64 = 512 << 20;
const DEEP: u8 = 4;

fn cannot(code: i32, message: String) -> CliError {
    CliError { code, message, carries_on: false }
}

/// Becomes the program; comes back with an error only.
pub(super) fn exec(socket: &Path, words: &[String]) -> CliError {
    let Some((name, args)) = words.split_first() else {
        return CliError::usage("exec: which program?");
    };
    let found = find(name).and_then(|program| may_run(&program, DEEP).map(|()| program));
    let program = match found {
        Ok(program) => program,
        Err(e) => return e,
    };
    let library = match library() {
        Ok(library) => library,
        Err(e) => return e,
    };
    // the program may go elsewhere
    let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|o| !o.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let e = Command::new(&program)
        .arg0(name)
        .args(args)
        .env("LD_PRELOAD", preload)
        .env("LVSD_SOCKET", socket)
        .exec();
    cannot(EXIT_CANNOT, format!("{}: {e}", program.display()))
}

/// Where the library is: beside lvsctl, or where it is installed.
fn library() -> Result<PathBuf, CliError> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent);
    let mut places: Vec<PathBuf> =
        beside.map(|dir| vec![dir.to_owned(), dir.join("../lib/lvsd")]).unwrap_or_default();
    places.extend(["/usr/local/lib/lvsd", "/usr/lib/lvsd"].map(PathBuf::from));
    let found = places.iter().map(|dir| dir.join(LIBRARY)).find(|file| file.is_file());
    found.and_then(|file| file.canonicalize().ok()).ok_or_else(|| {
        let dirs: Vec<String> = places.iter().map(|dir| dir.display().to_string()).collect();
        cannot(EXIT_CANNOT, format!("exec: {LIBRARY} is in none of {}", dirs.join(", ")))
    })
}

/// The program's file, by `PATH` where the name has no slash.
fn find(name: &str) -> Result<PathBuf, CliError> {
    if name.contains('/') {
        return Ok(name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/sbin:/usr/bin:/sbin:/bin"));
    let executable = |file: &PathBuf| file.metadata().is_ok_and(|m| m.is_file() && m.mode() & 0o111 != 0);
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(executable)
        .ok_or_else(|| cannot(EXIT_NOT_FOUND, format!("{name}: no such program in PATH")))
}

/// Whether the library can stand before the C library in a program, or why it cannot.
fn may_run(program: &Path, deep: u8) -> Result<(), CliError> {
    let no = |why: &str| cannot(EXIT_CANNOT, format!("{}: {why}", program.display()));
    let failed = |e: io::Error| {
        let code = if e.kind() == io::ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_CANNOT };
        cannot(code, format!("{}: {e}", program.display()))
    };
    let file = std::fs::File::open(program).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if meta.is_dir() {
        return Err(no("is a directory"));
    }
    let other_user = meta.mode() & 0o4000 != 0 && meta.uid() != rustix::process::geteuid().as_raw();
    let other_group = meta.mode() & 0o2000 != 0 && meta.gid() != rustix::process::getegid().as_raw();
    if other_user || other_group {
        return Err(no(
            "is set-user-ID or set-group-ID: the loader ignores preloaded libraries there; run it as its owner",
        ));
    }
    let mut bytes = Vec::new();
    file.take(LOOK).read_to_end(&mut bytes).map_err(failed)?;
    if let Some(line) = bytes.strip_prefix(b"#!") {
        let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
        let word = line.split(|b| b.is_ascii_whitespace()).find(|w| !w.is_empty()).unwrap_or_default();
        let interpreter = PathBuf::from(OsString::from_vec(word.to_vec()));
        return match deep.checked_sub(1) {
            Some(deep) => may_run(&interpreter, deep),
            None => Err(no("too many interpreters, one for the other")),
        };
    }
    // what is no ELF file at all the kernel judges
    match look(&bytes) {
        Some(Kind::Dynamic) | None => Ok(()),
        Some(Kind::Static) => Err(no("is linked statically: no library can be put before its C library")),
        Some(Kind::Go) => Err(no("is a Go program, which makes its system calls without the C library")),
        Some(Kind::Foreign) => Err(no("is for another architecture than liblvsd_preload.so")),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Dynamic,
    Static,
    Go,
    Foreign,
}

/// What kind of ELF file it is; none where it is none.
fn look(bytes: &[u8]) -> Option<Kind> {
    if ElfFile32::<Endianness>::parse(bytes).is_ok() {
        return Some(Kind::Foreign);
    }
    let file = ElfFile64::<Endianness>::parse(bytes).ok()?;
    let (header, endian) = (file.elf_header(), file.endian());
    let machine = if cfg!(target_arch = "x86_64") { elf::EM_X86_64 } else { elf::EM_AARCH64 };
    if header.e_machine(endian) != machine {
        return Some(Kind::Foreign);
    }
    let sections = header.sections(endian, bytes).ok();
    if sections.is_some_and(|s| s.section_by_name(endian, b".go.buildinfo").is_some()) {
        return Some(Kind::Go);
    }
    let interpreted = file.elf_program_headers().iter().any(|h| h.p_type(endian) == elf::PT_INTERP);
    Some(if interpreted { Kind::Dynamic } else { Kind::Static })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_apart() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(look(&own), Some(Kind::Dynamic));
        assert_eq!(look(b"#!/bin/sh\n"), None);
        assert_eq!(look(b""), None);
        // without its program headers it has no interpreter
        let mut fixed = own.clone();
        fixed[56] = 0;
        fixed[57] = 0;
        assert_eq!(look(&fixed), Some(Kind::Static));
        let mut other = own.clone();
        other[18] = 8;
        assert_eq!(look(&other), Some(Kind::Foreign));
    }

    #[test]
    fn refusals_name_the_program_and_why() {
        let e = find("no-such-program-anywhere").unwrap_err();
        assert_eq!((e.code, e.message.as_str()), (127, "no-such-program-anywhere: no such program in PATH"));
        let e = may_run(Path::new("/nowhere/x"), 1).unwrap_err();
        assert_eq!(e.code, 127);
        let e = may_run(Path::new("/"), 1).unwrap_err();
        assert_eq!((e.code, e.message.as_str()), (126, "/: is a directory"));
        assert!(find("sh").is_ok_and(|sh| may_run(&sh, 1).is_ok()));
    }
}
