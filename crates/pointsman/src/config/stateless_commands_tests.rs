//! Tests of `stateless_commands`: what is accepted, and what is refused and why.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use super::load::assemble;
use super::value::MAX_ELEMENTS;
use super::*;

fn read(text: &str, env: &[(&str, &str)]) -> Result<Config, String> {
    let vars: Vec<(OsString, OsString)> =
        env.iter().map(|(name, value)| (name.into(), value.into())).collect();
    let no_files = |_: &Path, _: u64| Err(io::Error::from(io::ErrorKind::NotFound));
    let file = (!text.is_empty()).then_some(("f", text));
    assemble(file, &vars, &Flags::default(), &no_files)
        .config()
        .map_err(|faults| format!("{faults}"))
}

#[test]
fn refuses_commands_that_are_known_to_leave_state() {
    let with = |names: &str| {
        let text = format!("[[service]]\nsentinels = [\"s1\"]\nstateless_commands = {names}\n");
        let faults = read(&text, &[]).err().unwrap_or_default();
        faults.lines().map(str::to_owned).collect::<Vec<String>>()
    };
    assert_eq!(with("[\"graph.query\", \"FOO|bar\", \"JSON.GET\"]"), Vec::<String>::new());
    for (names, part) in [
        ("[\"MULTI\"]", "MULTI is known to leave state on the connection: the server has queued"),
        ("[\"x\", \"scan\"]", "scan is known to leave state on the connection: a cursor is valid"),
        ("[\"CLIENT|ID\"]", "gives this ID to another connection"),
        ("[\"CLIENT\"]", "CONTAINER|SUBCOMMAND"),
        ("[\"A B\"]", "cannot be the name of a command"),
        ("[\"A,B\"]", "is not one command"),
        ("\"GRAPH.QUERY\"", "put it in brackets"),
        ("[3]", "expected a string in the list"),
    ] {
        let got = with(names);
        assert!(got.len() == 1 && got[0].contains(part), "{names}: {got:#?}");
    }
    let many: Vec<String> = (0..=MAX_ELEMENTS).map(|number| format!("M{number}")).collect();
    let env = [("POINTSMAN_SENTINEL", "s"), ("POINTSMAN_STATELESS_COMMANDS", &*many.join(","))];
    assert!(read("", &env).is_err_and(|faults| faults.contains("too many")));
    let env =
        [("POINTSMAN_SENTINEL", "s"), ("POINTSMAN_STATELESS_COMMANDS", "graph.query, foo|bar")];
    assert_eq!(read("", &env).unwrap().services[0].stateless_commands, ["GRAPH.QUERY", "FOO|BAR"]);
}
