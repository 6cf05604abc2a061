//! Generates `docs/configuration.md`: every key with its documentation, from the definitions that
//! the parser and the help use.

use std::fmt::Write as _;

use pointsman::reference::{ConfigSection, OptionSpec, Reload, SECTIONS};

/// The introduction, before the keys.
const HEAD: &str = "# Configuration

Every key with its default after `=`, generated from `crates/pointsman/src/config/options.rs`; a
test compares them, and `UPDATE=1 cargo test --test docs` writes the page. The [quick
start](quickstart.md#with-a-configuration-file) has a small file that suits most installations.

- Flags override environment variables, these override the file, and the file overrides the
  defaults.
- The variable of a key is `POINTSMAN_` and its path in capitals, without `service`:
  `POINTSMAN_TIMERS_POLL`. Those of `service.name`, `service.sentinels` and `admin.listen` are
  `POINTSMAN_SERVICE`, `POINTSMAN_SENTINEL` and `POINTSMAN_ADMIN`.
- `pointsman config` prints all keys with their values and where each value came from.
  `pointsman check` reports every fault at once, with line and key; a syntax error alone.
- Unknown keys are refused, with the nearest known key as a suggestion.
- Durations are written `\"250ms\"`, `\"5s\"`, `\"10m\"`.
- There may be several `[[service]]` tables, one for each master. They share the connections to
  their sentinels.
- A reload applies all keys except those marked *restart*, also to established sessions; a client
  that waits keeps its `hold_timeout`.
- `--set shutdown.drain_timeout=30s` sets any key that has no flag of its own, except passwords.
";

/// Returns the page.
pub(crate) fn page() -> String {
    let mut out = HEAD.to_owned();
    let mut described = Vec::new();
    for (at, section) in SECTIONS.iter().enumerate() {
        let about = section.about.split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = write!(out, "\n## `{}`\n\n{}\n", section.header(), fill(&about));
        if let Some(first) = SECTIONS.iter().take(at).find(|it| has_same_keys(it, section)) {
            let keys: Vec<_> = section.options.iter().map(|it| format!("`{}`", it.key)).collect();
            let same =
                format!("Keys and defaults as in `{}`: {}.", first.header(), keys.join(", "));
            let _ = write!(out, "\n{}\n", fill(&same));
            continue;
        }
        for option in section.options {
            let _ = write!(out, "\n{}\n", of_option(section, option, &mut described));
        }
    }
    out
}

/// Whether two sections have the same keys with the same meaning.
fn has_same_keys(one: &ConfigSection, other: &ConfigSection) -> bool {
    let keys = |section: &ConfigSection| -> Vec<_> {
        let options = section.options.iter();
        let parts = options.map(|it| {
            let default = it.default_value().map(|value| value.to_toml());
            (it.key, default, it.reload == Reload::Live, it.paragraphs())
        });
        parts.collect()
    };
    keys(one) == keys(other)
}

/// An option with its description, or with the option that had the description first.
fn of_option(
    section: &ConfigSection,
    option: &OptionSpec,
    described: &mut Vec<(String, String)>,
) -> String {
    let path = section.path_of(option.key);
    let default = match option.default_value() {
        Some(value) => format!(" = {}", value.to_toml()),
        None => String::new(),
    };
    let restart = if option.reload == Reload::Live { "" } else { ", *restart*" };
    let text = escaped(&option.paragraphs().join(" "));
    let first = described.iter().find(|(_, known)| *known == text);
    let text = match first {
        Some((first, _)) => format!("As `{first}`."),
        None => {
            described.push((path.clone(), text.clone()));
            text
        }
    };
    fill(&format!("**`{}{default}`**{restart}. {text}", option.key))
}

/// Escapes the characters that have a meaning in Markdown. An underscore within a word has none.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    let mut last = ' ';
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let next = rest.peek().copied().unwrap_or(' ');
        let within = last.is_ascii_alphanumeric() && next.is_ascii_alphanumeric();
        if matches!(c, '<' | '*') || (c == '_' && !within) {
            out.push('\\');
        }
        out.push(c);
        last = c;
    }
    out
}

/// Breaks a text into lines of at most a hundred characters.
fn fill(text: &str) -> String {
    const WIDTH: usize = 100;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => word.clone_into(line),
            Some(line) if line.len() + word.len() < WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}
