//! Arguments that a command of this program is given unparsed, because most of them are for cargo.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

/// Parses the arguments of `cargo xtask test` that are not for cargo.
///
/// # Errors
/// The exit code, after help or an error was printed.
pub(crate) fn parse<T: Parser>(args: &[OsString]) -> Result<T, ExitCode> {
    let words = std::iter::once(OsString::from("cargo xtask test")).chain(args.iter().cloned());
    T::try_parse_from(words).map_err(|error| {
        // There is nowhere else to say it.
        let _printed = error.print();
        if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
    })
}

/// The help of a subcommand of `T`, which has none by itself.
pub(crate) fn help<T: CommandFactory>(subcommand: &str) -> String {
    let mut all = T::command();
    all.build();
    let found = all.find_subcommand_mut(subcommand);
    found.map(|it| it.render_long_help().to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    #[command(bin_name = "cargo xtask")]
    enum All {
        /// Run every test.
        #[command(disable_help_flag = true)]
        Test { args: Vec<OsString> },
    }

    #[derive(Debug, Parser)]
    struct Options {
        #[arg(long)]
        list: bool,
    }

    #[test]
    fn shows_help_instead_of_passing_it_on() {
        let args = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let help = help::<All>("test");
        assert!(help.contains("Run every test") && help.contains("cargo xtask test"), "{help}");
        assert!(parse::<Options>(&args(&["--list"])).unwrap().list);
        assert!(parse::<Options>(&args(&["--unknown"])).is_err());
    }
}
