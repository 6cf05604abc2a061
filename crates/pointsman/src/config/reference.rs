//! Generates `docs/configuration.md`: every key with its documentation, from the definitions that
//! the parser and the help use.

use std::fmt::Write as _;

use super::option_spec::{OptionSpec, Reload};
use super::schema::{ConfigSection, SECTIONS};

/// The introduction, before the keys.
const HEAD: &str = "# Configuration

Every key with its default. This page is generated from the definitions in
`crates/pointsman/src/config/options.rs`; a test compares them, and
`UPDATE=1 cargo test --test docs` writes it.

- Flags override environment variables (`POINTSMAN_...`), these override the file, and the file
  overrides the defaults.
- `pointsman config` prints all keys with their values and where each value came from.
  `pointsman check` reports every fault at once, with line and key.
- Unknown keys are refused, with the nearest known key as a suggestion.
- Durations are written `\"250ms\"`, `\"5s\"`, `\"10m\"`.
- There may be several `[[service]]` tables, one for each master. They share the connections to
  their sentinels.
- A reload applies the keys that are marked *live*, also to established sessions. All other keys
  need a restart.
- A flag sets any key that has no flag of its own: `--set shutdown.drain_timeout=30s`. Passwords
  cannot be given by flag.

A small file that suits most installations:

```toml
[[service]]
name = \"mymaster\"
listen = [\"0.0.0.0:6379\"]
sentinels = [\"redis-sentinel:26379\"]

[service.auth]
username = \"probe\"
password_file = \"/run/secrets/redis\"

[admin]
listen = [\"0.0.0.0:8888\"]
```
";

/// The whole page.
#[must_use]
pub fn reference() -> String {
    let mut out = HEAD.to_owned();
    for section in SECTIONS {
        out.push_str(&of_section(section));
    }
    out
}

fn of_section(section: &ConfigSection) -> String {
    let about = section.about.split_whitespace().collect::<Vec<_>>().join(" ");
    let table = section.header();
    let mut out = format!("\n## `{table}`\n\n{about}\n");
    for option in section.options {
        out.push_str(&of_option(section, option));
    }
    out
}

fn of_option(section: &ConfigSection, option: &OptionSpec) -> String {
    let mut out = String::new();
    let path = section.path_of(option.key);
    let _ = write!(out, "\n### `{path}`\n\n");
    for paragraph in option.paragraphs() {
        // Characters with a meaning in Markdown are escaped.
        let _ = write!(
            out,
            "{}\n\n",
            paragraph.replace('<', "\\<").replace('*', "\\*").replace('_', "\\_")
        );
    }
    let default = match option.default_value() {
        Some(value) => format!("Default `{}`", value.to_toml()),
        None => "No default".to_owned(),
    };
    let live = if option.reload == Reload::Live { ", *live*" } else { "" };
    let _ = writeln!(out, "{default}, variable `{}`{live}.", section.variable(option.key));
    out
}
