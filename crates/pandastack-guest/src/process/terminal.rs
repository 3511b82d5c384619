//! Terminals: the process has one end, the guest program the other.
//!
//! Invariants: no path is involved, so nothing that a tenant mounts over `/dev/pts` matters; the
//! terminal belongs to the user who works on it.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

use nix::errno::Errno;
use pandastack_guest_proto::message::{ErrorBody, ErrorCode, TerminalSize};

/// Read and write for the user, write for `tty`, as login programs set it.
const DEVICE_MODE: u32 = 0o620;

/// The guest program's side of a terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    controller: OwnedFd,
    size: TerminalSize,
}

impl Terminal {
    /// Creates a terminal; returns it and the side that the process gets.
    pub(crate) fn open(size: TerminalSize, uid: u32) -> Result<(Self, OwnedFd), ErrorBody> {
        let flags = libc::O_NOCTTY | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let controller = File::options().read(true).write(true).custom_flags(flags).open("/dev/ptmx");
        let controller = OwnedFd::from(controller.map_err(|error| failed("open /dev/ptmx", &error))?);
        let unlocked: libc::c_int = 0;
        // SAFETY: the call reads one integer that outlives it.
        check("unlock", unsafe {
            libc::ioctl(controller.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked)
        })?;
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        // SAFETY: the call takes plain numbers and returns a new descriptor.
        let device = unsafe { libc::ioctl(controller.as_raw_fd(), libc::TIOCGPTPEER, flags) };
        check("open", device)?;
        // SAFETY: the descriptor is new and has no other owner.
        let device = File::from(unsafe { OwnedFd::from_raw_fd(device) });
        // Only root may change its owner; otherwise (in tests) it already belongs to the current
        // user.
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::fchown(&device, Some(uid), None)
                .and_then(|()| device.set_permissions(PermissionsExt::from_mode(DEVICE_MODE)))
                .map_err(|error| failed("give away", &error))?;
        }
        let mut terminal = Self { controller, size };
        terminal.resize(size)?;
        Ok((terminal, device.into()))
    }

    /// Another descriptor of this side, for reading or writing.
    pub(crate) fn handle(&self) -> Result<OwnedFd, ErrorBody> {
        self.controller.try_clone().map_err(|error| failed("use", &error))
    }

    pub(crate) fn size(&self) -> TerminalSize {
        self.size
    }

    /// Changes the size; the kernel notifies the foreground program.
    pub(crate) fn resize(&mut self, size: TerminalSize) -> Result<(), ErrorBody> {
        if size.rows == 0 || size.cols == 0 {
            return Err(ErrorBody::new(ErrorCode::Invalid, "a terminal has at least one row and one column"));
        }
        let wanted = libc::winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the call reads a structure that outlives it.
        check("resize", unsafe {
            libc::ioctl(self.controller.as_raw_fd(), libc::TIOCSWINSZ, &raw const wanted)
        })?;
        self.size = size;
        Ok(())
    }
}

fn check(what: &str, result: libc::c_int) -> Result<(), ErrorBody> {
    if result < 0 {
        return Err(failed(what, &std::io::Error::from(Errno::last())));
    }
    Ok(())
}

fn failed(what: &str, error: &std::io::Error) -> ErrorBody {
    let code = match error.kind() {
        std::io::ErrorKind::StorageFull => ErrorCode::TooMany,
        _ => ErrorCode::Io,
    };
    ErrorBody::new(code, format!("cannot {what} a terminal: {error}"))
}
