//! Prints the effective configuration as a documented file.
//!
//! The output is complete TOML and can be used as a configuration file. Above each key stand its
//! documentation, its default and the origin of its value. Passwords are printed as a placeholder,
//! which is accepted with a warning.

use std::fmt::Write as _;

use super::option_spec::{OptionSpec, Reload};
use super::schema::{ConfigSection, SECTIONS};
use super::settings::Settings;
use super::settings::{Origin, SettingMap};

/// Width of comments, in columns.
const WIDTH: usize = 100;

/// The whole text, ending with a line break.
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

fn print_section(out: &mut String, section: &ConfigSection, values: &SettingMap) {
    out.push('\n');
    comment(out, &section.about.split_whitespace().collect::<Vec<_>>().join(" "));
    let header = section.header();
    let _ = writeln!(out, "{header}");
    for option in section.options {
        out.push('\n');
        print_option(out, section, option, values);
    }
}

fn print_option(
    out: &mut String,
    section: &ConfigSection,
    option: &OptionSpec,
    values: &SettingMap,
) {
    for paragraph in option.paragraphs() {
        comment(out, &paragraph);
    }
    let path = section.path_of(option.key);
    let setting = values.settings.get(&path);
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

/// Writes a comment, wrapped. Control characters are replaced: TOML does not allow them in
/// comments, and the path of a file may contain them.
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
