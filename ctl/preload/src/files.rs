//! The files below `/proc` that a kernel with IPVS has.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use libc::{FILE, mode_t, size_t, ssize_t};
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};

use crate::daemon;
use crate::sys::{self, fail, set_errno};
use crate::table::{self, What};

const FILES: [&str; 6] =
    ["ip_vs", "ip_vs_app", "ip_vs_conn", "ip_vs_conn_sync", "ip_vs_stats", "ip_vs_stats_percpu"];

/// A file that is the daemon's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Special<'a> {
    /// Below `/proc/net`.
    Net(&'static str),
    /// Below `/proc/sys/net/ipv4/vs`.
    Setting(&'a str),
}

/// Finds out by an absolute path whether a file is the daemon's.
fn special(path: &str) -> Option<Special<'_>> {
    let rest = path.strip_prefix("/proc/")?;
    if let Some(name) = rest.strip_prefix("sys/net/ipv4/vs/") {
        // no setting's name is as long
        let sound =
            (1..64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        return sound.then_some(Special::Setting(name));
    }
    let name = ["net/", "self/net/", "thread-self/net/"].iter().find_map(|dir| rest.strip_prefix(dir))?;
    FILES.into_iter().find(|file| *file == name).map(Special::Net)
}

/// The path that a C function was given, if it is text.
///
/// # Safety
/// It is null or ends with a zero byte, and is not changed meanwhile.
unsafe fn path_of<'a>(path: *const c_char) -> Option<&'a str> {
    if path.is_null() {
        return None;
    }
    // SAFETY: it is not null, and the caller vouches for the rest.
    unsafe { CStr::from_ptr(path) }.to_str().ok()
}

/// How a file is to be opened.
#[derive(Clone, Copy)]
struct How {
    write: bool,
    cloexec: bool,
}

impl How {
    fn of(flags: c_int) -> How {
        How { write: flags & libc::O_ACCMODE != libc::O_RDONLY, cloexec: flags & libc::O_CLOEXEC != 0 }
    }
}

fn memory(cloexec: bool) -> Result<OwnedFd, c_int> {
    let flags = if cloexec { MemfdFlags::CLOEXEC } else { MemfdFlags::empty() };
    memfd_create("lvsd", flags).map_err(|e| e.raw_os_error())
}

/// A file in memory with what the daemon says now.
fn open_special(file: Special<'_>, how: How) -> Result<OwnedFd, c_int> {
    let fd = match file {
        Special::Net(_) if how.write => return daemon::is_there().and(Err(libc::EACCES)),
        Special::Net(name) => daemon::write_file(name, memory(how.cloexec)?)?,
        Special::Setting(name) => {
            let text = daemon::setting(name)? + "\n";
            let fd = memory(how.cloexec)?;
            rustix::io::write(&fd, text.as_bytes()).map_err(|e| e.raw_os_error())?;
            fd
        }
    };
    seek(fd.as_fd(), SeekFrom::Start(0)).map_err(|e| e.raw_os_error())?;
    Ok(fd)
}

fn open_numbered(file: Special<'_>, how: How) -> c_int {
    let fd = match open_special(file, how) {
        Ok(fd) => fd.into_raw_fd(),
        Err(e) => return fail(e),
    };
    if let (Special::Setting(name), true) = (file, how.write) {
        table::add(fd, What::Setting(Arc::from(name)));
    }
    fd
}

/// Writes a setting's value as it was given to `write(2)`.
pub(crate) fn write_setting(name: &str, bytes: &[u8]) -> ssize_t {
    let Ok(text) = std::str::from_utf8(bytes) else { return fail(libc::EINVAL) as ssize_t };
    match daemon::set(name, text.trim_matches(['\n', ' ', '\0'])) {
        Ok(()) => ssize_t::try_from(bytes.len()).unwrap_or(ssize_t::MAX),
        Err(e) => fail(e) as ssize_t,
    }
}

macro_rules! opens {
    ($($name:ident),*) => {$(
        /// `open(2)`
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: a C string, as the caller must give.
            if let Some(file) = unsafe { path_of(path) }.and_then(special) {
                return open_numbered(file, How::of(flags));
            }
            // SAFETY: the caller's own arguments.
            unsafe { sys::open(path, flags, mode) }
        }
    )*};
}

opens!(open, open64);

macro_rules! openats {
    ($($name:ident),*) => {$(
        /// `openat(2)`
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: a C string, as the caller must give.
            if let Some(file) = unsafe { path_of(path) }.and_then(special) {
                return open_numbered(file, How::of(flags));
            }
            // SAFETY: the caller's own arguments.
            unsafe { sys::openat(dir, path, flags, mode) }
        }
    )*};
}

openats!(openat, openat64);

macro_rules! checked_opens {
    ($($name:ident as $plain:ident),*) => {$(
        /// `open(2)` where a program is compiled with `_FORTIFY_SOURCE`
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller's own arguments; the flags make no file, which a mode would be for.
            unsafe { $plain(path, flags, 0) }
        }
    )*};
}

checked_opens!(__open_2 as open, __open64_2 as open64);

macro_rules! checked_openats {
    ($($name:ident as $plain:ident),*) => {$(
        /// `openat(2)` where a program is compiled with `_FORTIFY_SOURCE`
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller's own arguments; the flags make no file, which a mode would be for.
            unsafe { $plain(dir, path, flags, 0) }
        }
    )*};
}

checked_openats!(__openat_2 as openat, __openat64_2 as openat64);

/// Functions of a stream of our own (`fopencookie(3)`).
#[repr(C)]
struct CookieFunctions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> *mut FILE;
}

/// Writes to a stream that stands for a setting. 0 is an error to stdio.
unsafe extern "C" fn cookie_write(cookie: *mut c_void, bytes: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: the cookie is the name that `open_stream` put on the heap; the stream is closed last.
    let name = unsafe { &*cookie.cast::<String>() };
    // SAFETY: stdio gives a buffer of this length.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) };
    write_setting(name, bytes).max(0)
}

unsafe extern "C" fn cookie_close(cookie: *mut c_void) -> c_int {
    // SAFETY: the cookie is the name that `open_stream` put on the heap, and nobody uses it after this.
    drop(unsafe { Box::from_raw(cookie.cast::<String>()) });
    0
}

fn open_stream(file: Special<'_>, mode: &str) -> *mut FILE {
    let how = How { write: mode.contains(['w', 'a', '+']), cloexec: mode.contains('e') };
    let fd = match open_special(file, how) {
        Ok(fd) => fd,
        Err(e) => {
            set_errno(e);
            return std::ptr::null_mut();
        }
    };
    if let (Special::Setting(name), true) = (file, how.write) {
        let cookie = Box::into_raw(Box::new(name.to_owned()));
        let functions =
            CookieFunctions { read: None, write: Some(cookie_write), seek: None, close: Some(cookie_close) };
        // SAFETY: the functions take this cookie, which lives until the stream is closed; the mode is a C string.
        let stream = unsafe { fopencookie(cookie.cast(), c"w".as_ptr(), functions) };
        if stream.is_null() {
            // SAFETY: it came from `into_raw` just now, and nobody else has it.
            drop(unsafe { Box::from_raw(cookie) });
        }
        return stream;
    }
    let fd = fd.into_raw_fd();
    // SAFETY: the descriptor is open, and the stream's from now on; the mode is a C string.
    let stream = unsafe { libc::fdopen(fd, c"r".as_ptr()) };
    if stream.is_null() {
        // SAFETY: it is still ours, and open.
        unsafe { sys::close(fd) };
    }
    stream
}

macro_rules! fopens {
    ($($name:ident),*) => {$(
        /// `fopen(3)`
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            // SAFETY: C strings, as the caller must give.
            if let (Some(file), Some(mode)) = (unsafe { path_of(path) }.and_then(special), unsafe { path_of(mode) }) {
                return open_stream(file, mode);
            }
            // SAFETY: the caller's own arguments.
            unsafe { sys::fopen(path, mode) }
        }
    )*};
}

fopens!(fopen, fopen64);

/// `realpath(3)`, which would look at each part of the path
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
    // SAFETY: a C string, as the caller must give.
    let Some(file) = (unsafe { path_of(path) }).and_then(special) else {
        // SAFETY: the caller's own arguments.
        return unsafe { sys::realpath(path, to) };
    };
    if may_access(file, libc::F_OK) != 0 {
        return std::ptr::null_mut();
    }
    if to.is_null() {
        // SAFETY: a C string; the caller frees the copy.
        return unsafe { libc::strdup(path) };
    }
    // SAFETY: the caller gives PATH_MAX bytes, and no path that is special here is as long.
    unsafe { libc::strcpy(to, path) }
}

/// `realpath(3)` where a program is compiled with `_FORTIFY_SOURCE`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __realpath_chk(path: *const c_char, to: *mut c_char, _: size_t) -> *mut c_char {
    // SAFETY: the caller's own arguments; the compiler has seen that there is room for PATH_MAX bytes.
    unsafe { realpath(path, to) }
}

/// Whether a file is there, and may be used so.
fn may_access(file: Special<'_>, mode: c_int) -> c_int {
    let there = match file {
        Special::Net(_) => daemon::is_there(),
        Special::Setting(name) => daemon::setting(name).map(|_| ()),
    };
    let refused = mode & libc::X_OK != 0 || matches!(file, Special::Net(_)) && mode & libc::W_OK != 0;
    match there {
        Ok(()) if refused => fail(libc::EACCES),
        Ok(()) => 0,
        Err(e) => fail(e),
    }
}

/// `access(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: a C string, as the caller must give.
    match unsafe { path_of(path) }.and_then(special) {
        Some(file) => may_access(file, mode),
        // SAFETY: the caller's own arguments.
        None => unsafe { sys::access(path, mode) },
    }
}

/// `faccessat(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    // SAFETY: a C string, as the caller must give.
    match unsafe { path_of(path) }.and_then(special) {
        Some(file) => may_access(file, mode),
        // SAFETY: the caller's own arguments.
        None => unsafe { sys::faccessat(dir, path, mode, flags) },
    }
}

const fn permissions(file: Special<'_>) -> mode_t {
    match file {
        Special::Net(_) => libc::S_IFREG | 0o444,
        Special::Setting(_) => libc::S_IFREG | 0o644,
    }
}

/// Fills in what `stat` says of a file in `/proc`: a regular file of root's, without length.
///
/// # Safety
/// `to` is valid for writing.
unsafe fn fill_stat(file: Special<'_>, to: *mut libc::stat) -> c_int {
    if may_access(file, libc::F_OK) != 0 {
        return -1;
    }
    // SAFETY: zeros are a value of this struct of numbers.
    let mut s: libc::stat = unsafe { std::mem::zeroed() };
    s.st_mode = permissions(file);
    s.st_nlink = 1;
    s.st_ino = 1;
    s.st_blksize = 1024;
    // SAFETY: the caller vouches for it.
    unsafe { to.write(s) };
    0
}

macro_rules! stats {
    ($($name:ident by $next:ident),*) => {$(
        /// `stat(2)` or `lstat(2)`
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, to: *mut libc::stat) -> c_int {
            // SAFETY: a C string, as the caller must give.
            match unsafe { path_of(path) }.and_then(special) {
                // SAFETY: the caller gives a place for the answer.
                Some(file) => unsafe { fill_stat(file, to) },
                // SAFETY: the caller's own arguments.
                None => unsafe { sys::$next(path, to) },
            }
        }
    )*};
}

stats!(stat by stat, stat64 by stat, lstat by lstat, lstat64 by lstat);

macro_rules! fstatats {
    ($($name:ident),*) => {$(
        /// `fstatat(2)`
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(dir: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int {
            // SAFETY: a C string, as the caller must give.
            match unsafe { path_of(path) }.and_then(special) {
                // SAFETY: the caller gives a place for the answer.
                Some(file) => unsafe { fill_stat(file, to) },
                // SAFETY: the caller's own arguments.
                None => unsafe { sys::fstatat(dir, path, to, flags) },
            }
        }
    )*};
}

fstatats!(fstatat, fstatat64);

/// `statx(2)`
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: u32,
    to: *mut libc::statx,
) -> c_int {
    // SAFETY: a C string, as the caller must give.
    let Some(file) = (unsafe { path_of(path) }).and_then(special) else {
        // SAFETY: the caller's own arguments.
        return unsafe { sys::statx(dir, path, flags, mask, to) };
    };
    if may_access(file, libc::F_OK) != 0 {
        return -1;
    }
    // SAFETY: zeros are a value of this struct of numbers.
    let mut s: libc::statx = unsafe { std::mem::zeroed() };
    s.stx_mask = libc::STATX_BASIC_STATS;
    s.stx_mode = permissions(file) as u16;
    s.stx_nlink = 1;
    s.stx_ino = 1;
    s.stx_blksize = 1024;
    // SAFETY: the caller gives a place for the answer.
    unsafe { to.write(s) };
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_files_of_ipvs_are_special() {
        for name in FILES {
            for dir in ["net", "self/net", "thread-self/net"] {
                assert_eq!(special(&format!("/proc/{dir}/{name}")), Some(Special::Net(name)));
            }
        }
        assert_eq!(special("/proc/sys/net/ipv4/vs/drop_entry"), Some(Special::Setting("drop_entry")));
        for other in [
            "/proc/net/tcp",
            "/proc/net/ip_vs_other",
            "/proc/net/ip_vs/x",
            "/proc/sys/net/ipv4/vs/",
            "/proc/sys/net/ipv4/vs/../ip_forward",
            "/proc/sys/net/ipv4/ip_forward",
            "ip_vs",
            "",
        ] {
            assert_eq!(special(other), None, "{other}");
        }
    }
}
