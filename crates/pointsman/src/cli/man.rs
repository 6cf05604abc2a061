//! Generates the manual page: the flags from the argument parser, the keys from the option
//! definitions, the metrics from the catalogue.

use std::io;

use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};

use crate::admin::metrics::{CATALOGUE, HAPROXY};
use crate::config::schema::SECTIONS;

/// Returns the page as roff.
///
/// # Errors
///
/// None in practice: the page is written to memory.
pub(super) fn page(command: clap::Command) -> io::Result<String> {
    let mut out = Vec::new();
    let subcommands: Vec<clap::Command> = command.get_subcommands().cloned().collect();
    let man = Man::new(command);
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    commands(&subcommands).to_writer(&mut out)?;
    keys().to_writer(&mut out)?;
    metrics().to_writer(&mut out)?;
    man.render_extra_section(&mut out)?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

fn commands(subcommands: &[clap::Command]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["COMMANDS"]);
    for command in subcommands {
        roff.control("SS", [format!("pointsman {}", command.get_name()).as_str()]);
        let about = command.get_long_about().or_else(|| command.get_about());
        paragraphs(&mut roff, &about.map(ToString::to_string).unwrap_or_default());
        for arg in command.get_arguments() {
            let value = arg
                .get_value_names()
                .and_then(|names| names.first())
                .map(ToString::to_string)
                .unwrap_or_default();
            let takes_value = arg.get_action().takes_values();
            roff.control("TP", []);
            match arg.get_long() {
                Some(long) if takes_value => {
                    roff.text([bold(format!("--{long}")), roman(" "), italic(value)])
                }
                Some(long) => roff.text([bold(format!("--{long}"))]),
                None => roff.text([italic(value)]),
            };
            let help = arg
                .get_long_help()
                .or_else(|| arg.get_help())
                .map(ToString::to_string)
                .unwrap_or_default();
            paragraphs(&mut roff, &help);
        }
    }
    roff
}

/// The first paragraph continues the text above; each following one is separated.
fn paragraphs(roff: &mut Roff, text: &str) {
    for (at, paragraph) in text.split("\n\n").enumerate() {
        if at > 0 {
            roff.control("sp", []);
        }
        roff.text([roman(paragraph.split_whitespace().collect::<Vec<_>>().join(" "))]);
    }
}

fn keys() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["CONFIGURATION"]);
    let rule = "The file is TOML. Durations are written \"5s\", \"250ms\" or \"1m30s\". Flags \
                override the environment, the environment overrides the file, and the file \
                overrides the defaults. An empty variable counts as absent. Variables for the keys \
                of a service apply to the only service, or to the one that POINTSMAN_SERVICE \
                names. Variables that Kubernetes injects for a Service called pointsman \
                (POINTSMAN_SERVICE_HOST, POINTSMAN_PORT and the like) are ignored.";
    paragraphs(&mut roff, rule);
    for section in SECTIONS {
        roff.control("SS", [section.header().as_str()]);
        paragraphs(&mut roff, section.about);
        for option in section.options {
            roff.control("TP", []);
            roff.text([bold(option.key)]);
            paragraphs(&mut roff, &option.paragraphs().join("\n\n"));
            let default =
                option.default_value().map_or_else(|| "none".to_owned(), |value| value.to_toml());
            roff.control("sp", []);
            roff.text([roman(format!(
                "Default: {default}. Variable: {}.",
                section.variable(option.key)
            ))]);
        }
    }
    roff
}

fn metrics() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["METRICS"]);
    paragraphs(&mut roff, "The metrics of the admin server's /metrics, with their labels.");
    for (title, metrics) in [("Always", CATALOGUE), ("With metrics.haproxy_names = true", HAPROXY)]
    {
        roff.control("SS", [title]);
        for metric in metrics {
            roff.control("TP", []);
            let labels = if metric.labels.is_empty() {
                String::new()
            } else {
                format!(" {{{}}}", metric.labels.join(", "))
            };
            roff.text([bold(metric.name), roman(format!(" {}{labels}", metric.kind.label()))]);
            paragraphs(&mut roff, metric.help);
        }
    }
    roff
}
