//! The kernel's TCP sockets, from `/proc/net/tcp` and `/proc/net/tcp6`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The state of a socket, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketState {
    Listen,
    /// Connected, connecting, or closing with a peer that may still answer.
    Active,
    /// Neither listening nor active; the kernel only remembers it.
    Done,
}

/// One socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpSocket {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) state: SocketState,
}

/// Every TCP socket of the machine.
pub(crate) fn read_sockets() -> Vec<TcpSocket> {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .flat_map(|table| table.lines().skip(1).filter_map(parse_line).collect::<Vec<_>>())
        .collect()
}

fn parse_line(line: &str) -> Option<TcpSocket> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    let state = match u8::from_str_radix(state, 16).ok()? {
        0x0A => SocketState::Listen,
        // ESTABLISHED, SYN_SENT, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING
        0x01 | 0x02 | 0x04 | 0x05 | 0x08 | 0x09 | 0x0B => SocketState::Active,
        _ => SocketState::Done,
    };
    Some(TcpSocket { local: parse_address(local)?, remote: parse_address(remote)?, state })
}

/// `0100007F:1F90`: 32-bit words as the processor reads them, in hex.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(words.concat()).ok()?))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_table_lines_are_parsed() {
        let check = |line: &str, local: &str, remote: &str, state: SocketState| {
            let expect = TcpSocket { local: local.parse().unwrap(), remote: remote.parse().unwrap(), state };
            assert_eq!(parse_line(line), Some(expect), "{line}");
        };
        check(
            "   0: 0100007F:1F90 00000000:0000 0A 00000000:0",
            "127.0.0.1:8080",
            "0.0.0.0:0",
            SocketState::Listen,
        );
        check(
            "   1: 0200A8C0:C001 08080808:01BB 01 00000000:0",
            "192.168.0.2:49153",
            "8.8.8.8:443",
            SocketState::Active,
        );
        check(
            "   2: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A x",
            "[::]:80",
            "[::]:0",
            SocketState::Listen,
        );
        for bad in [
            "",
            "  sl  local_address",
            "0: zz:00 00000000:0000 0A",
            "0: 0100007F 0:0 0A",
            "0: é100007F:1F90 0:0 0A",
        ] {
            assert_eq!(parse_line(bad), None, "{bad}");
        }
    }
}
