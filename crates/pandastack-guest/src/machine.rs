//! Facts about the machine: uptime, statistics, listening ports.

use std::collections::VecDeque;

use pandastack_guest_proto::message::{
    CpuStats, DiskStats, ErrorBody, Event, ListeningPort, MemoryStats, NetworkStats, ProcessInfo, Stats,
};

use crate::files::{Source, Step};
use crate::tcp_table::{SocketState, read_sockets};

/// Items of a listing in one message. The longest, a process with a tag and a command that JSON escapes,
/// stays far below a frame.
const PAGE_ITEMS: usize = 16;

/// Time since boot.
pub(crate) fn uptime_ms() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .ok()
        .and_then(|now| u64::try_from(std::time::Duration::from(now).as_millis()).ok())
        .unwrap_or_default()
}

/// The machine's resource usage. A figure that cannot be read is zero.
pub(crate) fn stats(processes_running: usize) -> Stats {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    Stats {
        uptime_ms: uptime_ms(),
        cpu: parse_cpu(&read("/proc/stat"), &read("/proc/loadavg")),
        memory: parse_memory(&read("/proc/meminfo")),
        disk: disk(),
        processes_running: u32::try_from(processes_running).unwrap_or(u32::MAX),
        network: Some(parse_network(&read("/proc/net/dev"))),
    }
}

fn parse_cpu(stat: &str, loadavg: &str) -> CpuStats {
    // The kernel counts in hundredths of a second for every program it shows them to.
    const TICK_MS: u64 = 10;
    let ticks: Vec<u64> = stat
        .lines()
        .find_map(|line| line.strip_prefix("cpu "))
        .map(|line| line.split_whitespace().filter_map(|field| field.parse().ok()).collect())
        .unwrap_or_default();
    let sum = |fields: &[usize]| fields.iter().filter_map(|&at| ticks.get(at)).sum::<u64>() * TICK_MS;
    let count = stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
    let load = loadavg.split_whitespace().next().and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    CpuStats {
        count: u32::try_from(count).unwrap_or(u32::MAX),
        user_ms: sum(&[0, 1]),
        system_ms: sum(&[2, 5, 6]),
        idle_ms: sum(&[3, 4]),
        load_1m_milli: (load * 1000.0) as u64,
    }
}

fn parse_memory(meminfo: &str) -> MemoryStats {
    let bytes = |key: &str| {
        meminfo
            .lines()
            .find_map(|line| {
                line.strip_prefix(key)?.strip_prefix(':')?.split_whitespace().next()?.parse::<u64>().ok()
            })
            .map_or(0, |kib| kib * 1024)
    };
    MemoryStats {
        total_bytes: bytes("MemTotal"),
        available_bytes: bytes("MemAvailable"),
        cached_bytes: bytes("Cached"),
    }
}

/// Columns of an interface: its name, 8 for received and 8 for sent data, bytes first.
fn parse_network(dev: &str) -> NetworkStats {
    let mut stats = NetworkStats::default();
    for (name, counts) in dev.lines().filter_map(|line| line.split_once(':')) {
        let counts: Vec<u64> = counts.split_whitespace().filter_map(|count| count.parse().ok()).collect();
        if name.trim() != "lo" {
            stats.received_bytes += counts.first().copied().unwrap_or_default();
            stats.sent_bytes += counts.get(8).copied().unwrap_or_default();
        }
    }
    stats
}

fn disk() -> DiskStats {
    let Ok(root) = nix::sys::statvfs::statvfs("/") else { return DiskStats::default() };
    let fragment = root.fragment_size();
    DiskStats {
        total_bytes: root.blocks().saturating_mul(fragment),
        available_bytes: root.blocks_available().saturating_mul(fragment),
        inodes_total: root.files(),
        inodes_available: root.files_available(),
    }
}

/// A listing that is already complete, sent page by page.
#[derive(Debug)]
pub(crate) struct PageSource {
    pages: VecDeque<Event>,
}

impl PageSource {
    pub(crate) fn processes(processes: Vec<ProcessInfo>) -> Self {
        Self {
            pages: processes
                .chunks(PAGE_ITEMS)
                .map(|page| Event::Processes { processes: page.to_vec() })
                .collect(),
        }
    }

    fn ports(ports: &[ListeningPort]) -> Self {
        Self {
            pages: ports.chunks(PAGE_ITEMS * 16).map(|page| Event::Ports { ports: page.to_vec() }).collect(),
        }
    }
}

impl Source for PageSource {
    fn next(&mut self, _bytes_max: usize) -> Result<Step, ErrorBody> {
        Ok(self.pages.pop_front().map_or(Step::End, Step::Event))
    }
}

/// The listening ports, read on request.
#[derive(Debug, Default)]
pub(crate) struct PortsSource {
    pages: Option<PageSource>,
}

impl Source for PortsSource {
    fn next(&mut self, bytes_max: usize) -> Result<Step, ErrorBody> {
        self.pages.get_or_insert_with(|| PageSource::ports(&listening_ports())).next(bytes_max)
    }
}

fn listening_ports() -> Vec<ListeningPort> {
    let mut ports: Vec<ListeningPort> = read_sockets()
        .into_iter()
        .filter(|socket| socket.state == SocketState::Listen)
        .map(|socket| ListeningPort { port: socket.local.port(), address: socket.local.ip() })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        let cpu = parse_cpu(
            "cpu  10 1 5 100 7 2 1 0 0 0\ncpu0 10 1 5 100 7 2 1 0 0 0\nintr 1\n",
            "1.25 0.5 0.1 1/80 99\n",
        );
        let expect = CpuStats { count: 1, user_ms: 110, system_ms: 80, idle_ms: 1070, load_1m_milli: 1250 };
        assert_eq!(cpu, expect);
        let memory =
            parse_memory("MemTotal:  2048 kB\nMemAvailable:    1024 kB\nCached:  3 kB\nSwapCached: 9 kB\n");
        assert_eq!(
            memory,
            MemoryStats { total_bytes: 2 << 20, available_bytes: 1 << 20, cached_bytes: 3072 }
        );
        assert_eq!(parse_cpu("garbage", ""), CpuStats::default());
        let dev = "Inter-| Receive | Transmit\n face |bytes | bytes\n    lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  \
                   eth0: 5 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n";
        assert_eq!(parse_network(dev), NetworkStats { received_bytes: 5, sent_bytes: 7 });
    }
}
