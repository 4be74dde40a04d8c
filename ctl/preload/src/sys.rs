//! The C library's own functions, which ours stand before.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{FILE, mode_t, msghdr, size_t, sockaddr, socklen_t, ssize_t};

/// A function of the C library, looked up when it is first wanted.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; none where the C library does not have it.
    pub(crate) fn get(&self) -> Option<*mut c_void> {
        let mut at = self.found.load(Ordering::Relaxed);
        if at.is_null() {
            // SAFETY: dlsym reads the name, which ends with a zero byte and lives for ever.
            at = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(at, Ordering::Relaxed);
        }
        (!at.is_null()).then_some(at)
    }
}

/// Defines `name(args) -> ret`, which calls the C library's function of that name; where there is none it answers `-1` (or a null
/// pointer) with `ENOSYS`.
macro_rules! next {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $fail:expr;)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// That of the C function: pointers are valid for what it does with them.
        $vis unsafe fn $name($($arg: $ty),*) -> $ret {
            static NEXT: Next = Next::new(
                // a name of an identifier has no zero byte within
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                }
            );
            let Some(at) = NEXT.get() else {
                set_errno(libc::ENOSYS);
                return $fail;
            };
            type F = unsafe extern "C" fn($($ty),*) -> $ret;
            // SAFETY: the C library's function of this name has this signature (arguments behind `...` are passed like others
            // on the architectures that lvsd runs on).
            let call: F = unsafe { std::mem::transmute::<*mut c_void, F>(at) };
            // SAFETY: the caller keeps the function's own rules.
            unsafe { call($($arg),*) }
        }
    )*};
}

next! {
    /// `socket(2)`
    pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = -1;
    /// `bind(2)`
    pub(crate) fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = -1;
    /// `connect(2)`
    pub(crate) fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = -1;
    /// `getsockname(2)`
    pub(crate) fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int = -1;
    /// `getpeername(2)`
    pub(crate) fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int = -1;
    /// `setsockopt(2)`
    pub(crate) fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int = -1;
    /// `getsockopt(2)`
    pub(crate) fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int = -1;
    /// `sendmsg(2)`
    pub(crate) fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t = -1;
    /// `sendto(2)`
    pub(crate) fn sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t) -> ssize_t = -1;
    /// `recvmsg(2)`
    pub(crate) fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t = -1;
    /// `recvfrom(2)`
    pub(crate) fn recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t = -1;
    /// `write(2)`
    pub(crate) fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t = -1;
    /// `close(2)`
    pub(crate) fn close(fd: c_int) -> c_int = -1;
    /// `close_range(2)`
    pub(crate) fn close_range(first: u32, last: u32, flags: c_int) -> c_int = -1;
    /// `dup(2)`
    pub(crate) fn dup(fd: c_int) -> c_int = -1;
    /// `dup2(2)`
    pub(crate) fn dup2(from: c_int, to: c_int) -> c_int = -1;
    /// `dup3(2)`
    pub(crate) fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int = -1;
    /// `fcntl(2)`
    pub(crate) fn fcntl(fd: c_int, what: c_int, arg: usize) -> c_int = -1;
    /// `open(2)`
    pub(crate) fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int = -1;
    /// `openat(2)`
    pub(crate) fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = -1;
    /// `fopen(3)`
    pub(crate) fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE = std::ptr::null_mut();
    /// `realpath(3)`
    pub(crate) fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char = std::ptr::null_mut();
    /// `access(2)`
    pub(crate) fn access(path: *const c_char, mode: c_int) -> c_int = -1;
    /// `faccessat(2)`
    pub(crate) fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int = -1;
    /// `stat(2)`
    pub(crate) fn stat(path: *const c_char, to: *mut libc::stat) -> c_int = -1;
    /// `lstat(2)`
    pub(crate) fn lstat(path: *const c_char, to: *mut libc::stat) -> c_int = -1;
    /// `fstatat(2)`
    pub(crate) fn fstatat(dir: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int = -1;
    /// `statx(2)`
    pub(crate) fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: u32, to: *mut libc::statx) -> c_int = -1;
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the location is the thread's own, always valid and aligned.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: as above; nobody else writes to it.
    unsafe { *at = errno };
}

/// The calling thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: the location is the thread's own, always valid and aligned.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *at }
}

/// Fails as a system call does.
pub(crate) fn fail(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}
