//! Processor use.

/// Ticks of all processors since the host was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Processors {
    idle: u64,
    all: u64,
}

impl Processors {
    /// The times up to now. All zero if the kernel does not report them.
    pub fn now() -> Self {
        Self::read(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// The line `cpu user nice system idle iowait irq softirq steal ...`. Time of guests is in `user`
    /// already.
    fn read(stat: &str) -> Self {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|tick| tick.parse().ok()).collect();
        Self { idle: ticks.iter().skip(3).take(2).sum(), all: ticks.iter().sum() }
    }

    /// Share of the time until `later` in which they were busy.
    pub fn busy_percent(&self, later: &Self) -> u64 {
        let (idle, all) = (later.idle.saturating_sub(self.idle), later.all.saturating_sub(self.all));
        (all.saturating_sub(idle) * 100).checked_div(all).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_load_excludes_idle_time() {
        let before = Processors::read("cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 1 2 3 4\n");
        assert_eq!(before, Processors { idle: 80, all: 100 });
        let later = Processors::read("cpu  70 0 30 80 20 0 0 0 9 0\n");
        assert_eq!(before.busy_percent(&later), 80);
        assert_eq!(before.busy_percent(&before), 0);
        assert_eq!(Processors::read("nothing"), Processors::default());
    }
}
