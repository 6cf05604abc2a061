//! The effective configuration as a file that explains itself.
//!
//! What is printed can be fed back: it is complete TOML, and each key has its documentation, its
//! default and where the value came from above it. Passwords are printed as a placeholder, which is
//! accepted and draws a warning.

use std::fmt::Write as _;

use super::schema::{SECTIONS, Section};
use super::section::{OptionSpec, Reload};
use super::settings::Settings;
use super::values::{Origin, Values};

/// Where comments are broken, in columns.
const WIDTH: usize = 100;

/// The whole text, with a line break at its end.
#[must_use]
pub(super) fn print(settings: &Settings) -> String {
    let mut out = String::new();
    comment(
        &mut out,
        "The effective configuration of pointsman. Flags > environment > file > defaults.",
    );
    for service in &settings.services {
        for section in SECTIONS.iter().filter(|section| section.is_of_service()) {
            print_section(&mut out, section, service);
        }
    }
    for section in SECTIONS.iter().filter(|section| !section.is_of_service()) {
        print_section(&mut out, section, &settings.process);
    }
    out
}

fn print_section(out: &mut String, section: &Section, values: &Values) {
    out.push('\n');
    comment(out, &section.about.split_whitespace().collect::<Vec<_>>().join(" "));
    let header = if section.path == "service" {
        "[[service]]".to_owned()
    } else {
        format!("[{}]", section.path)
    };
    let _ = writeln!(out, "{header}");
    for option in section.options {
        out.push('\n');
        print_option(out, section, option, values);
    }
}

fn print_option(out: &mut String, section: &Section, option: &OptionSpec, values: &Values) {
    for paragraph in option.paragraphs() {
        comment(out, &paragraph);
    }
    let path = section.path_of(option.key);
    let setting = values.setting(&path);
    let mut notes = match option.default_value() {
        Some(value) => format!("default {}", value.to_toml()),
        None => "no default".to_owned(),
    };
    match setting.map(|setting| &setting.origin) {
        Some(Origin::Default) => notes.push_str("; not changed"),
        Some(origin) => {
            let _ = write!(notes, "; set by {origin}");
        }
        None => notes.push_str("; not set"),
    }
    let _ = write!(notes, "; {}", section.variable(option.key));
    notes.push_str(if option.reload == Reload::Live {
        "; changed by a reload"
    } else {
        "; needs a restart"
    });
    comment(out, &format!("[{notes}]"));
    let _ = match setting {
        Some(setting) => writeln!(out, "{} = {}", option.key, setting.value.to_toml()),
        None => writeln!(out, "# {} =", option.key),
    };
}

/// Writes a comment, broken into lines. A comment of TOML may not hold control characters, and the
/// path of a file may.
fn comment(out: &mut String, text: &str) {
    let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let mut width = 0;
    for word in text.split(' ') {
        let length = word.chars().count() + 1;
        if width == 0 || width + length > WIDTH {
            out.push_str(if width == 0 { "#" } else { "\n#" });
            width = 1;
        }
        out.push(' ');
        out.push_str(word);
        width += length;
    }
    out.push('\n');
}
