//! Where the time of runs goes: by operation and device, and by copy.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::{CopyReport, NodeReport, Watch};
use crate::export::human;
use crate::{NodeId, Plan};

/// The time of operations and copies, summed over all runs that it watched. It asks for no values.
///
/// A watched run hands over and waits for each operation by itself, so that what a device saves by running a split as a
/// whole is missing: the sum is more than an unwatched run takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Profile {
    /// Runs that ended, well or not; see [`Profile::end_run`].
    pub runs: u64,
    /// By operation and device, in the order in which they were first met.
    pub operations: Vec<OpTime>,
    /// By pair of devices.
    pub copies: Vec<CopyTime>,
}

/// What an operation took on a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpTime {
    /// The operation's name.
    pub op: &'static str,
    /// The device's name.
    pub device: String,
    /// How often it ran.
    pub launches: u64,
    /// Handing it over, in nanoseconds; on a synchronous device, running it.
    pub submit_ns: u64,
    /// Waiting for it after that.
    pub wait_ns: u64,
}

/// What copies from one device to another took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopyTime {
    /// The name of the device that made the values.
    pub from: String,
    /// The name of the device that reads them.
    pub to: String,
    /// How many there were.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Waiting for them and copying them, in nanoseconds.
    pub time_ns: u64,
}

impl OpTime {
    fn total(&self) -> u64 {
        self.submit_ns + self.wait_ns
    }
}

impl Profile {
    /// Counts a run, which [`Watch`] does not hear the end of.
    pub fn end_run(&mut self) {
        self.runs += 1;
    }

    /// A table for people, what took longest first.
    pub fn to_text(&self) -> String {
        let time: u64 = self.operations.iter().map(OpTime::total).sum();
        let copying: u64 = self.copies.iter().map(|c| c.time_ns).sum();
        let all = time + copying;
        let header = ["", "device", "count", "total ms", "%", "mean µs", "submit ms", "wait ms", "bytes"];
        let mut rows = vec![header.map(str::to_owned)];
        let mut operations: Vec<&OpTime> = self.operations.iter().collect();
        operations.sort_by_key(|o| std::cmp::Reverse(o.total()));
        for o in operations {
            let row = [o.op.to_owned(), o.device.clone()];
            let (submit, wait) = (ms(o.submit_ns), ms(o.wait_ns));
            rows.push(cells(row, o.launches, o.total(), all, [submit, wait, String::new()]));
        }
        for c in &self.copies {
            let row = ["copy".to_owned(), format!("{} → {}", c.from, c.to)];
            let rest = [String::new(), String::new(), human_u64(c.bytes)];
            rows.push(cells(row, c.copies, c.time_ns, all, rest));
        }
        let sum = |of: fn(&OpTime) -> u64| ms(self.operations.iter().map(of).sum());
        let launches: u64 = self.operations.iter().map(|o| o.launches).sum();
        let count = launches + self.copies.iter().map(|c| c.copies).sum::<u64>();
        let bytes = self.copies.iter().map(|c| c.bytes).sum();
        let sums = [sum(|o| o.submit_ns), sum(|o| o.wait_ns), human_u64(bytes)];
        rows.push(cells(["all".to_owned(), String::new()], count, all, all, sums));

        let mut out = String::new();
        let runs = if self.runs == 1 { "run" } else { "runs" };
        let _ =
            writeln!(out, "operations of {} {runs}, each handed over and waited for by itself:", self.runs);
        let width = |c: usize| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
        let widths: [usize; 9] = std::array::from_fn(width);
        for row in &rows {
            let mut line = String::new();
            for (c, cell) in row.iter().enumerate() {
                let padding = " ".repeat(widths[c] - cell.chars().count());
                // Names are left-aligned, numbers right-aligned.
                line += &if c < 2 { format!("{cell}{padding}  ") } else { format!("{padding}{cell}  ") };
            }
            out += line.trim_end();
            out.push('\n');
        }
        out
    }
}

fn cells([name, device]: [String; 2], count: u64, time: u64, all: u64, rest: [String; 3]) -> [String; 9] {
    let [submit, wait, bytes] = rest;
    let share = format!("{:.1}", 100.0 * time as f64 / all.max(1) as f64);
    let mean = format!("{:.1}", time as f64 / 1e3 / count.max(1) as f64);
    [name, device, count.to_string(), ms(time), share, mean, submit, wait, bytes]
}

fn human_u64(bytes: u64) -> String {
    human(usize::try_from(bytes).unwrap_or(usize::MAX))
}

fn ms(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e6)
}

/// Nanoseconds; what does not fit is 584 years.
pub(super) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Watch for Profile {
    fn wants(&mut self, _plan: &Plan, _node: NodeId) -> bool {
        false
    }

    fn ran(&mut self, report: &NodeReport<'_>) {
        let op = report.plan.graph().node(report.node).op.name();
        let device = &report.plan.device_names()[report.device.index()];
        let found = self.operations.iter().position(|o| o.op == op && o.device == *device);
        let i = found.unwrap_or_else(|| {
            let device = device.clone();
            self.operations.push(OpTime { op, device, launches: 0, submit_ns: 0, wait_ns: 0 });
            self.operations.len() - 1
        });
        let row = &mut self.operations[i];
        row.launches += 1;
        row.submit_ns += ns(report.submit);
        row.wait_ns += ns(report.wait);
    }

    fn copied(&mut self, report: &CopyReport<'_>) {
        let names = report.plan.device_names();
        let (from, to) = (&names[report.from.index()], &names[report.to.index()]);
        let found = self.copies.iter().position(|c| c.from == *from && c.to == *to);
        let i = found.unwrap_or_else(|| {
            let (from, to) = (from.clone(), to.clone());
            self.copies.push(CopyTime { from, to, copies: 0, bytes: 0, time_ns: 0 });
            self.copies.len() - 1
        });
        let row = &mut self.copies[i];
        row.copies += 1;
        row.bytes += report.bytes as u64;
        row.time_ns += ns(report.time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_this() {
        let op = |op, device: &str, launches, submit_ns, wait_ns| OpTime {
            op,
            device: device.to_owned(),
            launches,
            submit_ns,
            wait_ns,
        };
        let profile = Profile {
            runs: 2,
            operations: vec![op("silu", "gpu", 4, 10_000, 90_000), op("mat_mul", "cpu", 10, 1_500_000, 0)],
            copies: vec![CopyTime {
                from: "cpu".to_owned(),
                to: "gpu".to_owned(),
                copies: 2,
                bytes: 2048,
                time_ns: 400_000,
            }],
        };
        let wanted = "\
operations of 2 runs, each handed over and waited for by itself:
         device     count  total ms      %  mean µs  submit ms  wait ms    bytes
mat_mul  cpu           10      1.50   75.0    150.0       1.50     0.00
silu     gpu            4      0.10    5.0     25.0       0.01     0.09
copy     cpu → gpu      2      0.40   20.0    200.0                      2.0 KiB
all                    16      2.00  100.0    125.0       1.51     0.09  2.0 KiB
";
        assert_eq!(profile.to_text(), wanted);
        let none = Profile::default().to_text();
        assert!(
            none.ends_with("\nall              0      0.00  0.0      0.0       0.00     0.00    0 B\n"),
            "{none}"
        );
    }
}
