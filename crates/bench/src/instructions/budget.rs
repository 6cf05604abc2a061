//! Compares instruction counts with their budgets. Pure.
//!
//! A budget belongs to a kind of CPU. It also depends on the compiler, but is not recorded for each
//! version: a compiler that makes the hot path three percent slower should be noticed. The message
//! then names the compiler.

use std::fmt;

use serde_json::{Map, Value, json};

/// The tolerance above a budget.
const TOLERANCE: f64 = 0.03;

/// The recorded budgets of all kinds of CPU.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Budgets(Map<String, Value>);

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Outcome {
    /// The count was recorded as the budget.
    Recorded,
    /// There is no budget for this kind of CPU.
    Unknown,
    /// Within three percent of the budget.
    Within { budget: f64, change: f64 },
    /// Over three percent below the budget: worth recording.
    Under { budget: f64, change: f64 },
    /// Over three percent above the budget.
    Over { budget: f64, change: f64 },
}

impl Budgets {
    /// Reads the text of the file; an empty text has no budgets.
    ///
    /// # Errors
    /// If it is not valid JSON.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self(Map::new()));
        }
        serde_json::from_str(text)
            .map(Self)
            .map_err(|error| format!("benches/instructions.json: {error}"))
    }

    /// Compares a count with its budget.
    pub(super) fn judge(&self, case: &str, counted: f64) -> Outcome {
        let known = self.own().and_then(|own| own.get("budgets")?.get(case)?.as_f64());
        let Some(budget) = known.filter(|budget| *budget > 0.0) else { return Outcome::Unknown };
        let change = counted / budget - 1.0;
        if change > TOLERANCE {
            Outcome::Over { budget, change }
        } else if change < -TOLERANCE {
            Outcome::Under { budget, change }
        } else {
            Outcome::Within { budget, change }
        }
    }

    /// Records a count.
    pub(super) fn set(&mut self, case: &str, counted: f64, compiler: &str) {
        let mut budgets =
            self.own().and_then(|own| own.get("budgets")?.as_object().cloned()).unwrap_or_default();
        budgets.insert(case.to_owned(), json!((counted * 10.0).round() / 10.0));
        let own = json!({ "budgets": budgets, "compiler": compiler });
        self.0.insert(std::env::consts::ARCH.to_owned(), own);
    }

    /// The text of the file.
    pub(super) fn text(&self) -> String {
        format!("{:#}\n", Value::Object(self.0.clone()))
    }

    /// What else may have changed.
    pub(super) fn hint(&self, compiler: &str) -> String {
        let recorded = self.own().and_then(|own| own.get("compiler")?.as_str()).unwrap_or_default();
        if recorded == compiler {
            String::new()
        } else {
            format!(" They were recorded with {recorded}, this is {compiler}.")
        }
    }

    fn own(&self) -> Option<&Value> {
        self.0.get(std::env::consts::ARCH)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recorded => write!(f, "recorded"),
            Self::Unknown => write!(f, "no budget for {}", std::env::consts::ARCH),
            Self::Within { budget, change } => write!(f, "{budget:>9.1}  {:+.1} %", change * 100.0),
            Self::Under { budget, change } => {
                write!(f, "{budget:>9.1}  {:+.1} %, worth recording", change * 100.0)
            }
            Self::Over { budget, change } => {
                write!(f, "{budget:>9.1}  {:+.1} %  OVER BUDGET", change * 100.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_more_than_three_percent_above_budget() {
        let mut budgets = Budgets::read("").expect("none");
        assert_eq!(budgets.judge("get", 400.0), Outcome::Unknown);
        budgets.set("get", 400.0, "a compiler");
        let budgets = Budgets::read(&budgets.text()).expect("what was written");
        assert!(matches!(budgets.judge("get", 411.9), Outcome::Within { .. }));
        assert!(matches!(budgets.judge("get", 412.1), Outcome::Over { .. }));
        assert!(matches!(budgets.judge("get", 387.0), Outcome::Under { .. }));
        assert_eq!(budgets.judge("set", 1.0), Outcome::Unknown);
        assert_eq!(budgets.hint("a compiler"), "");
        assert!(budgets.hint("another").contains("a compiler"));
        assert!(Budgets::read("nonsense").is_err());
    }

    #[test]
    fn reads_the_committed_budgets() {
        let file = crate::raw::benches().join("instructions.json");
        let budgets =
            Budgets::read(&std::fs::read_to_string(file).expect("it is committed")).expect("JSON");
        let own =
            budgets.0.get("x86_64").and_then(|own| own.get("budgets")).and_then(Value::as_object);
        assert!(own.is_some_and(|own| own.len() == super::super::Case::ALL.len()), "{budgets:?}");
    }
}
