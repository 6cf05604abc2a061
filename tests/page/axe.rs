//! Runs axe-core, an accessibility checker, on the page.

use serde_json::Value;

use crate::tab::Tab;

/// Returns its source, installed from npm if it is missing.
pub(crate) fn source() -> String {
    let file = harness::axe_core().unwrap_or_else(|error| panic!("axe-core: {error}"));
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Returns its serious and critical findings on the current page as text.
#[track_caller]
pub(crate) fn violations(tab: &Tab<'_>, source: &str) -> Vec<String> {
    tab.eval(&format!("if (!window.axe) {{ {source}\n }} true"));
    let found = tab.eval(
        "axe.run(document, { resultTypes: ['violations'] }).then(r => ({ passes: r.passes.length, faults: r.violations
            .filter(v => v.impact === 'serious' || v.impact === 'critical')
            .map(v => `${v.id}: ${v.help}: ${v.nodes.map(n => n.html + ' ' + n.failureSummary).join(' | ')}`) }))",
    );
    // A run without checks proves nothing.
    assert!(found["passes"].as_u64() > Some(10), "{found}");
    found["faults"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}
