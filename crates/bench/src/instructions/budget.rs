//! Compares instruction counts with their budgets. Pure.
//!
//! A budget belongs to a kind of CPU. It also depends on the compiler, but is not recorded for each
//! version: a compiler that makes the hot path three percent slower should be noticed. The message
//! then names the compiler.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stats::rounded;

/// The tolerance above and below a budget.
const TOLERANCE: f64 = 0.03;

/// The recorded budgets of all kinds of CPU.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Budgets(BTreeMap<String, Recorded>);

/// The budgets of one kind of CPU.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Recorded {
    budgets: BTreeMap<String, f64>,
    /// The compiler of the latest recording.
    compiler: String,
}

/// The result of a comparison.
#[derive(Debug, PartialEq)]
pub(super) struct Outcome {
    pub(super) is_over: bool,
    pub(super) text: String,
}

impl Budgets {
    /// Reads the text of the file; an empty text has no budgets.
    ///
    /// # Errors
    /// If it is not valid JSON.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_str(text).map_err(|error| format!("benches/instructions.json: {error}"))
    }

    /// Compares a count with its budget.
    pub(super) fn judge(&self, case: &str, counted: f64) -> Outcome {
        let cpu = std::env::consts::ARCH;
        let Some(budget) = self.own().and_then(|own| own.budgets.get(case)) else {
            return Outcome { is_over: false, text: format!("no budget for {cpu}") };
        };
        let change = counted / budget - 1.0;
        let remark = match change {
            change if change > TOLERANCE => "  OVER BUDGET",
            change if change < -TOLERANCE => ", worth recording",
            _ => "",
        };
        let text = format!("{budget:>9.1}  {:+.1} %{remark}", change * 100.0);
        Outcome { is_over: change > TOLERANCE, text }
    }

    /// Records a count.
    pub(super) fn set(&mut self, case: &str, counted: f64, compiler: &str) {
        let own = self.0.entry(std::env::consts::ARCH.to_owned()).or_default();
        own.budgets.insert(case.to_owned(), rounded(counted, 1));
        compiler.clone_into(&mut own.compiler);
    }

    /// The text of the file.
    ///
    /// # Errors
    /// A count is no number.
    pub(super) fn text(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self)
            .map(|text| text + "\n")
            .map_err(|error| error.to_string())
    }

    /// What else may have changed.
    pub(super) fn hint(&self, compiler: &str) -> String {
        let recorded = self.own().map_or("", |own| &own.compiler);
        if recorded == compiler {
            String::new()
        } else {
            format!(" They were recorded with {recorded}, this is {compiler}.")
        }
    }

    fn own(&self) -> Option<&Recorded> {
        self.0.get(std::env::consts::ARCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_more_than_three_percent_above_budget() {
        let mut budgets = Budgets::read("").expect("none");
        assert!(budgets.judge("get", 400.0).text.starts_with("no budget"));
        budgets.set("get", 400.0, "a compiler");
        let budgets = Budgets::read(&budgets.text().expect("numbers")).expect("what was written");
        let of = |counted| budgets.judge("get", counted);
        assert_eq!(of(411.9), Outcome { is_over: false, text: "    400.0  +3.0 %".to_owned() });
        assert!(of(412.1).is_over && of(412.1).text.ends_with("OVER BUDGET"));
        assert!(!of(387.0).is_over && of(387.0).text.ends_with("worth recording"));
        assert!(budgets.judge("set", 1.0).text.starts_with("no budget"));
        assert_eq!(budgets.hint("a compiler"), "");
        assert!(budgets.hint("another").contains("a compiler"));
        assert!(Budgets::read("nonsense").is_err());
    }

    #[test]
    fn reads_the_committed_budgets() {
        let file = crate::raw::benches().join("instructions.json");
        let text = std::fs::read_to_string(file).expect("it is committed");
        let budgets = Budgets::read(&text).expect("JSON");
        assert_eq!(budgets.text().expect("numbers"), text);
        let own = budgets.0.get("x86_64").map(|own| own.budgets.len());
        assert_eq!(own, Some(super::super::Case::ALL.len()), "{budgets:?}");
    }
}
