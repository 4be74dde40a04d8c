use std::fmt;

/// An error number of Linux, positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $number:literal, $doc:literal;)*) => {
        impl Errno {
            $(#[doc = $doc] pub const $name: Errno = Errno($number);)*

            /// The symbol, for those that IPVS or this daemon use.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "The caller may not administer.";
    ENOENT = 2, "No such scheduler, persistence engine, destination or family.";
    ESRCH = 3, "No such service, or no such daemon.";
    EIO = 5, "Input or output failed.";
    ENOMEM = 12, "Out of memory, or of a table's places.";
    EACCES = 13, "A value that can only be read.";
    EBUSY = 16, "In use.";
    EEXIST = 17, "The service or destination exists.";
    ENODEV = 19, "No such interface.";
    EINVAL = 22, "A required attribute is missing, or a value is not possible.";
    ENOSPC = 28, "No place left.";
    ERANGE = 34, "A value is out of range.";
    EMSGSIZE = 90, "A message is too long.";
    ENOPROTOOPT = 92, "The protocol is not available.";
    EOPNOTSUPP = 95, "The command is not known, or not for this address family.";
    EAFNOSUPPORT = 97, "The address family is not supported.";
    ENOBUFS = 105, "A message was lost for want of memory.";
    ETIMEDOUT = 110, "No answer in time.";
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

/// The text of `strerror(3)`, for instance `File exists`.
impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = std::io::Error::from_raw_os_error(self.0).to_string();
        f.write_str(text.split(" (os error").next().unwrap_or(&text))
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(e: Errno) -> Self {
        Self::from_raw_os_error(e.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Errno;

    #[test]
    fn prints_as_strerror() {
        assert_eq!(Errno::EEXIST.to_string(), "File exists");
        assert_eq!(Errno::ERANGE.to_string(), "Numerical result out of range");
        assert_eq!(format!("{:?} {:?}", Errno::ESRCH, Errno(40)), "ESRCH Errno(40)");
    }
}
