//! Samples: each ends with its expected result, in comments that begin with `#=`: the command, the
//! exit code, every key of the configuration, and the warnings or refusals.
//!
//! `UPDATE=1 cargo test --test import` writes the expected results; review the difference.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use haproxy_import::{Environment, ImportOptions};

use super::{check, run};

const COMMAND: &str = "pointsman import haproxy";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import")
}

/// Names of all samples, without the extension.
fn names() -> Vec<String> {
    let entries =
        fs::read_dir(folder()).expect("a folder").map(|entry| entry.expect("an entry").path());
    let samples = entries.filter(|path| path.extension().is_some_and(|it| it == "cfg"));
    let mut names: Vec<String> =
        samples.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    assert!(names.len() >= 40, "only {} samples", names.len());
    names
}

/// A sample without its expected result, and the expected result.
fn read(name: &str) -> (String, String) {
    let text = fs::read_to_string(folder().join(format!("{name}.cfg"))).expect(name);
    let at = text.find("\n#= ").map_or(text.len(), |at| at + 1);
    let (config, expected) = text.split_at(at);
    (config.to_owned(), expected.to_owned())
}

/// Every value of a table as `path = value`.
fn flatten(path: &str, value: &toml::Value, out: &mut Vec<String>) {
    match value {
        toml::Value::Table(table) => {
            let separator = if path.is_empty() { "" } else { "." };
            for (key, value) in table {
                flatten(&format!("{path}{separator}{key}"), value, out);
            }
        }
        toml::Value::Array(all) if all.iter().all(toml::Value::is_table) => {
            for (at, value) in all.iter().enumerate() {
                flatten(&format!("{path}[{at}]"), value, out);
            }
        }
        value => out.push(format!("{path} = {value}")),
    }
}

/// The actual result of a sample, in the form of the expected one.
fn actual(name: &str, expected: &str) -> String {
    let command =
        expected.lines().next().and_then(|line| line.strip_prefix("#= ")).unwrap_or(COMMAND);
    let flags: Vec<&str> =
        command.strip_prefix(COMMAND).expect(command).split_whitespace().collect();
    let file = format!("{name}.cfg");
    let args = [&["import", "haproxy"], &flags[..], &[file.as_str()]].concat();
    let output = run(&args, &folder());
    let code = output.status.code().expect("an exit code");
    let toml = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(toml.is_empty(), code != 0, "{name}: {toml}");
    let mut lines = vec![command.to_owned(), format!("exit {code}")];
    if code == 0 {
        check(name, toml.as_bytes());
        let table: toml::Table = toml.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
        flatten("", &toml::Value::Table(table), &mut lines);
        let dropped = toml.lines().filter(|line| line.starts_with("#   "));
        lines.extend(dropped.map(str::to_owned));
    }
    let shown = String::from_utf8(output.stderr).expect("UTF-8");
    lines.extend(shown.lines().filter(|line| !line.contains(" lines: ")).map(str::to_owned));
    lines.into_iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "#= {line}");
        text
    })
}

#[test]
fn samples_have_their_expected_result() {
    let mut wrong = String::new();
    for name in names() {
        let (config, expected) = read(&name);
        let actual = actual(&name, &expected);
        if actual != expected {
            let _ =
                writeln!(wrong, "--- {name}, expected:\n{expected}--- {name}, actual:\n{actual}");
            if std::env::var_os("UPDATE").is_some() {
                fs::write(folder().join(format!("{name}.cfg")), format!("{config}{actual}"))
                    .expect("a file");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}\nUPDATE=1 cargo test --test import writes it");
}

#[test]
fn names_the_line_that_is_not_utf8() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("h.cfg"), b"global\n\n# caf\xe9\n").expect("a file");
    let output = run(&["import", "haproxy", "h.cfg"], folder.path());
    let shown = String::from_utf8_lossy(&output.stderr);
    let expected = "cannot read h.cfg: line 3 is not UTF-8 text; save the file as UTF-8";
    assert!(!output.status.success() && shown.contains(expected), "{shown}");
}

/// Each line of every sample is reported once, and its keyword is known to the importer.
#[test]
fn reports_every_line_of_every_sample_once() {
    let env = Environment {
        variable: &|_| Some("10.0.0.1".to_owned()),
        folder: &|_| None,
        endpoint: &|it| Some(it.to_owned()),
    };
    for name in names() {
        let (text, _) = read(&name);
        let speaks = |line: &str| !line.trim().is_empty() && !line.trim().starts_with('#');
        let wanted: Vec<usize> =
            (1..).zip(text.lines()).filter(|(_, it)| speaks(it)).map(|(at, _)| at).collect();
        let import =
            haproxy_import::import(&[(name.clone(), text)], &ImportOptions::default(), &env);
        let lines = &import.report.lines;
        assert_eq!(lines.iter().map(|it| it.position.line).collect::<Vec<_>>(), wanted, "{name}");
        let unknown = lines.iter().find(|it| it.note.is_empty() || it.note.contains("unknown"));
        assert!(unknown.is_none(), "{name}: {unknown:?}");
    }
}
