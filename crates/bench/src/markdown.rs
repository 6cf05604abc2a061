//! Tables of the reports.

/// A table with a heading.
pub(crate) fn table<T: AsRef<str>>(heading: &[T], rows: &[Vec<String>]) -> String {
    let heading: Vec<&str> = heading.iter().map(AsRef::as_ref).collect();
    let head = format!("| {} |\n|{}\n", heading.join(" | "), "---|".repeat(heading.len()));
    rows.iter().fold(head, |text, cells| text + &row(cells))
}

/// A row of a table.
pub(crate) fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// A list.
pub(crate) fn list(items: impl IntoIterator<Item = String>) -> String {
    items.into_iter().map(|item| format!("- {}\n", item.replace('\n', " "))).collect()
}
