//! `cargo xtask pictures`: the two pictures of the README, created from real failovers.
//!
//! The same planned failover is executed through haproxy and through Pointsman, with the same
//! writers. Every acknowledged write is recorded with its time and looked up later on the new
//! master. The plot shows both runs on one time axis. The screenshot of the status page is taken at
//! the end of the second run, while the writers still write.
//!
//! The numbers in the plot are counted from the writes that it shows.

mod page;
mod plot;
mod record;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;
use harness::{Cluster, Haproxy, Pointsman, find_in_path};
use setup::{build, files, install};

use record::Run;

/// Options of `cargo xtask pictures`.
#[derive(Debug, Args)]
pub(crate) struct PicturesOptions {
    /// The folder for the pictures, instead of docs/images below the current folder.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// Executes both runs and writes both pictures.
///
/// # Errors
/// A message for people: what is missing, which run failed, or which file cannot be written.
pub(crate) fn run(options: &PicturesOptions) -> Result<ExitCode, String> {
    install::for_pictures()?;
    let program = build::pointsman_or(None)?;
    let folder = options.folder.clone().unwrap_or_else(|| PathBuf::from("docs/images"));
    files::make(&folder)?;
    let haproxy = through_haproxy()?;
    println!("{}", haproxy.sentence());
    let screenshot = folder.join("status-page.png");
    let pointsman = through_pointsman(&program, &screenshot)?;
    println!("{}", pointsman.sentence());
    let plot = folder.join("planned-failover.svg");
    plot::draw(&[haproxy, pointsman], &plot)
        .map_err(|error| format!("{}: {error}", plot.display()))?;
    println!("Written: {} and {}", plot.display(), screenshot.display());
    Ok(ExitCode::SUCCESS)
}

fn through_haproxy() -> Result<Run, String> {
    let program = find_in_path("haproxy").unwrap_or_else(|| PathBuf::from("/usr/sbin/haproxy"));
    let version = version_in(
        &Command::new(&program).arg("-v").output().map(|it| it.stdout).unwrap_or_default(),
    );
    let cluster = Cluster::builder().masters(&["mymaster"]).start();
    let haproxy = Haproxy::start(program, &cluster);
    record::play(&format!("haproxy {version}"), &cluster, haproxy.addr(), || Ok(()))
}

fn through_pointsman(program: &Path, screenshot: &Path) -> Result<Run, String> {
    let cluster = Cluster::builder().masters(&["mymaster"]).start();
    let pointsman = Pointsman::builder(program, &cluster).start();
    let url = format!("http://{}/", pointsman.admin());
    record::play("Pointsman", &cluster, pointsman.addr(), || {
        page::photograph(&url, cluster.folder(), screenshot)
    })
}

/// The major and minor version in the output of `haproxy -v`.
fn version_in(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let full =
        said.split_whitespace().skip_while(|word| *word != "version").nth(1).unwrap_or_default();
    full.split(['.', '-']).take(2).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_version_of_haproxy() {
        let said = b"HAProxy version 2.6.12-1+deb12u1 2023/12/16 - https://haproxy.org/\nStatus: long-term\n";
        assert_eq!(version_in(said), "2.6");
        assert_eq!(version_in(b""), "");
    }
}
