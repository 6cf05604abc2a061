//! The timeline of one run; kept only if it will be printed.

use std::fmt::Write as _;

use crate::wire::{MS, Micros};

/// Lines with their time and process.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    lines: Option<Vec<(Micros, String, String)>>,
}

impl Trace {
    pub(crate) fn new(on: bool) -> Self {
        Self { lines: on.then(Vec::new) }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    pub(crate) fn add(&mut self, at: Micros, who: &str, text: String) {
        if let Some(lines) = &mut self.lines {
            lines.push((at, who.to_owned(), text));
        }
    }

    /// All lines with their time in milliseconds; repetitions of a line are counted.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        let mut last: Option<(&String, &String, u32)> = None;
        for (at, who, text) in self.lines.iter().flatten() {
            match &mut last {
                Some((one, other, times)) if *one == who && *other == text => {
                    *times += 1;
                    continue;
                }
                Some((_, _, times)) if *times > 1 => {
                    let _ = writeln!(out, "{:>12}  {:<10} (the same {times} times)", "", "");
                }
                _ => {}
            }
            let (ms, part) = (at / MS, at % MS);
            let _ = writeln!(out, "{ms:>8}.{part:03}  {who:<10} {text}");
            last = Some((who, text, 1));
        }
        out
    }

    /// Times of the lines of which both parts match, for tests.
    #[cfg(test)]
    pub(crate) fn times(&self, who: &str, text: &str) -> Vec<Micros> {
        let lines = self.lines.iter().flatten();
        lines
            .filter(|(_, by, said)| by.starts_with(who) && said.contains(text))
            .map(|(at, ..)| *at)
            .collect()
    }
}
