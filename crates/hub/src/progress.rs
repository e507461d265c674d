//! How a download tells what it does.

/// Watches a download. Bars, percentages and colours are the caller's affair.
pub trait Progress {
    /// A transfer of `total` bytes begins; `label` names it. Ends with [`finish`](Progress::finish).
    fn start(&mut self, label: &str, total: u64);
    /// `bytes` more are here. The sum over one transfer never exceeds its total.
    fn advance(&mut self, bytes: u64);
    /// The transfer ended, well or not.
    fn finish(&mut self);
    /// One line a person should see, such as a source that is passed over.
    fn notice(&mut self, line: &str);
}

/// Shows nothing.
#[derive(Debug, Default, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {
    fn start(&mut self, _label: &str, _total: u64) {}
    fn advance(&mut self, _bytes: u64) {}
    fn finish(&mut self) {}
    fn notice(&mut self, _line: &str) {}
}

/// One transfer. Positions may fall back (a server that restarts a file); what is shown never does.
pub(crate) struct Meter<'a> {
    sink: &'a mut dyn Progress,
    total: u64,
    shown: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn start(sink: &'a mut dyn Progress, label: &str, total: u64) -> Self {
        sink.start(label, total);
        Self { sink, total, shown: 0 }
    }

    pub(crate) fn set(&mut self, position: u64) {
        let position = position.min(self.total);
        if position > self.shown {
            self.sink.advance(position - self.shown);
            self.shown = position;
        }
    }

    pub(crate) fn notice(&mut self, line: &str) {
        self.sink.notice(line);
    }
}

impl Drop for Meter<'_> {
    fn drop(&mut self) {
        self.sink.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Log(Vec<String>);

    impl Progress for Log {
        fn start(&mut self, label: &str, total: u64) {
            self.0.push(format!("start {label} {total}"));
        }
        fn advance(&mut self, bytes: u64) {
            self.0.push(format!("+{bytes}"));
        }
        fn finish(&mut self) {
            self.0.push("finish".into());
        }
        fn notice(&mut self, line: &str) {
            self.0.push(format!("notice {line}"));
        }
    }

    #[test]
    fn a_meter_never_goes_back_nor_past_its_total() {
        let mut log = Log::default();
        let mut meter = Meter::start(&mut log, "m", 100);
        for position in [10, 60, 0, 60, 70, 500] {
            meter.set(position);
        }
        drop(meter);
        assert_eq!(log.0, ["start m 100", "+10", "+50", "+10", "+30", "finish"]);
    }
}
