//! Serve mode: the guest program as an ordinary process.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use crate::channel::Channel;
use crate::environment::GuestEnvironment;
use crate::poller::Poller;
use crate::process::UserCgroup;
use crate::server::Server;

/// Options of serve mode.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServeOptions {
    pub(crate) socket: PathBuf,
    root: PathBuf,
    cgroup: Option<PathBuf>,
}

impl ServeOptions {
    pub(crate) fn parse(mut args: impl Iterator<Item = OsString>) -> Option<Self> {
        let (mut socket, mut root, mut cgroup) = (None, None, None);
        while let Some(name) = args.next() {
            let value = PathBuf::from(args.next()?);
            match name.to_str()? {
                "--serve" => socket = Some(value),
                "--root" => root = Some(value),
                "--cgroup" => cgroup = Some(value),
                _ => return None,
            }
        }
        let socket = socket?;
        // Never the real root: an identity must not rename the host.
        let root = root.unwrap_or_else(|| socket.with_extension("root"));
        Some(Self { socket, root, cgroup })
    }
}

/// Serves until SIGTERM or a shutdown call.
pub(crate) fn run(options: &ServeOptions) -> io::Result<()> {
    std::fs::create_dir_all(options.root.join("etc"))?;
    // Adopt orphans, as PID 1 does.
    nix::sys::prctl::set_child_subreaper(true)?;
    let cgroup = options.cgroup.as_deref().map(UserCgroup::create).transpose()?;
    let poller = Poller::new()?;
    let listener = UnixListener::bind(&options.socket)?;
    listener.set_nonblocking(true)?;
    let channel = Channel::socket(listener.into(), &poller)?;
    let environment = GuestEnvironment { root: options.root.clone(), is_machine: false, cgroup };
    let mut server = Server::new(poller, channel, environment)?;
    let _ = server.run()?;
    if let Some(cgroup) = options.cgroup.as_deref().map(UserCgroup::create).transpose()? {
        cgroup.kill()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed_or_refused() {
        let parse = |args: &[&str]| ServeOptions::parse(args.iter().map(OsString::from));
        let options = parse(&["--serve", "/x/s.sock", "--cgroup", "/c"]).unwrap();
        assert_eq!(options.root, PathBuf::from("/x/s.root"));
        assert_eq!(options.cgroup, Some(PathBuf::from("/c")));
        for bad in [&[][..], &["--serve"], &["--root", "/r"], &["--serve", "/s", "--what", "x"]] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
