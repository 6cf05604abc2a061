//! The command-line flags that set options.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::finding::{Finding, nearest};
use super::merge::Layer;
use super::option_spec::OptionSpec;
use super::schema;
use super::settings::Origin;
use super::value::{Problem, ValueKind};

/// The source of the configuration: the flags of the command line that set options.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Flags {
    /// Configuration file; - for the standard input [env: POINTSMAN_CONFIG]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,

    /// The name of the service to which the other flags and the environment apply.
    #[arg(long, value_name = "NAME", help_heading = "Service")]
    #[arg(help = service_help(), long_help = service_long_help())]
    pub service: Option<String>,

    /// Sentinels, replacing those of environment and file.
    #[arg(long = "sentinel", value_name = "ADDR", help_heading = "Service")]
    #[arg(help = help("service.sentinels"), long_help = long_help("service.sentinels"))]
    pub sentinels: Vec<String>,

    /// Listen addresses, replacing those of environment and file.
    #[arg(long, value_name = "ADDR", help_heading = "Service")]
    #[arg(help = help("service.listen"), long_help = long_help("service.listen"))]
    pub listen: Vec<String>,

    /// Listen addresses for readers, replacing those of environment and file.
    #[arg(long, value_name = "ADDR", help_heading = "Service")]
    #[arg(help = help("service.replica_listen"), long_help = long_help("service.replica_listen"))]
    pub replica_listen: Vec<String>,

    /// Addresses of the admin server, replacing those of environment and file.
    #[arg(long, value_name = "ADDR", help_heading = "Admin")]
    #[arg(help = help("admin.listen"), long_help = long_help("admin.listen"))]
    pub admin: Vec<String>,

    /// Any other key, as section.key=value; may be repeated
    ///
    /// For example --set shutdown.drain_timeout=30s --set service.minority=hold. Passwords are not
    /// accepted here, since the process list is public.
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Other keys")]
    pub set: Vec<String>,
}

/// The short help of a flag: the summary of its option with the variable and the default.
pub(crate) fn help(path: &str) -> String {
    let summary = schema::option(path).map(OptionSpec::summary).unwrap_or_default();
    format!("{}{}", summary.trim_end_matches('.'), brackets(path))
}

/// The long help of a flag that may be repeated.
pub(crate) fn long_help(path: &str) -> String {
    let paragraphs = schema::option(path).map(OptionSpec::paragraphs).unwrap_or_default();
    format!(
        "{}\n\nMay be repeated; replaces the values of environment and file.{}",
        paragraphs.join("\n\n"),
        brackets(path)
    )
}

fn service_help() -> String {
    format!(
        "Sentinel's name for the master; with several services, the one that other flags apply \
         to{}",
        brackets("service.name")
    )
}

fn service_long_help() -> String {
    let rule = "Selects the service that the other flags and the environment apply to. \
                Required if the file has several services and flags or variables are given for \
                one; all services are served in any case. Without a service in a file it is \
                the name of the one that the flags describe.";
    format!("Sentinel's name for the master.\n\n{rule}{}", brackets("service.name"))
}

fn brackets(path: &str) -> String {
    let Some((section_path, key)) = path.rsplit_once('.') else { return String::new() };
    let variable =
        schema::section(section_path).map(|section| section.variable(key)).unwrap_or_default();
    match schema::option(path).and_then(|option| option.default) {
        Some(default) => format!(" [env: {variable}] [default: {default}]"),
        None => format!(" [env: {variable}]"),
    }
}

pub(super) fn read(flags: &Flags) -> Layer {
    let mut layer = Layer::default();
    if let Some(name) = &flags.service {
        set(&mut layer, "service.name", name, "--service");
    }
    let lists = [
        ("service.sentinels", &flags.sentinels, "--sentinel"),
        ("service.listen", &flags.listen, "--listen"),
        ("service.replica_listen", &flags.replica_listen, "--replica-listen"),
        ("admin.listen", &flags.admin, "--admin"),
    ];
    for (path, given, flag) in lists {
        if !given.is_empty() {
            set(&mut layer, path, &given.join(","), flag);
        }
    }
    for pair in &flags.set {
        set_any(&mut layer, pair);
    }
    layer
}

fn set(layer: &mut Layer, path: &str, text: &str, flag: &str) {
    if let Some(option) = schema::option(path) {
        layer.set(path.to_owned(), option.kind.parse(text), Origin::Flag(flag.to_owned()));
    }
}

fn set_any(layer: &mut Layer, pair: &str) {
    let origin = Origin::Flag("--set".to_owned());
    let Some((path, text)) = pair.split_once('=') else {
        // The text is not repeated, because it may be a password whose key was forgotten.
        let problem = Problem::new(
            "the value is missing",
            "write --set KEY=VALUE, for example --set log.level=debug",
        );
        layer.findings.push(Finding::of(origin, "", problem));
        return;
    };
    let path = path.trim();
    match schema::option(path) {
        Some(option) if option.kind == ValueKind::Secret => {
            let remedy = "other users can read the command line; use password_file, password_env or the \
                environment";
            layer.set(
                path.to_owned(),
                Err(Problem::new("a password cannot be given by a flag", remedy)),
                origin,
            );
        }
        Some(option) => layer.set(path.to_owned(), option.kind.parse(text.trim()), origin),
        None => {
            let paths: Vec<String> =
                schema::options().map(|(section, option)| section.path_of(option.key)).collect();
            // A key that resembles none is not shown, as above.
            let (path, remedy) = match nearest(path, paths.iter().map(String::as_str)) {
                Some(near) => (path, format!("did you mean `{near}`?")),
                None => ("", "`pointsman config` lists the keys; write section.key".to_owned()),
            };
            layer.findings.push(Finding::new(origin, path, "unknown key", remedy));
        }
    }
}
