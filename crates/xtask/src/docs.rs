//! `cargo xtask docs`: builds docs/ as a book with mdBook.
//!
//! mdBook is a program and not a dependency: cargo installs it below `target/`, in the version
//! given here, so that nothing is installed outside of that folder.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use harness::find_in_path;
use setup::{cargo, must, root};

/// The version of mdBook.
const VERSION: &str = "0.5.4";

/// Builds the book into target/book.
///
/// # Errors
/// A message for people, if mdBook cannot be installed or started.
pub(crate) fn build() -> Result<ExitCode, String> {
    let root = root();
    must(Command::new(mdbook(&root)?).arg("build").current_dir(&root))?;
    println!("Written to target/book; open target/book/index.html.");
    Ok(ExitCode::SUCCESS)
}

/// The path of mdBook: below target/, in PATH, or freshly installed by cargo.
fn mdbook(root: &Path) -> Result<PathBuf, String> {
    let tools = root.join("target/docs-tools");
    let ours = tools.join("bin/mdbook");
    if ours.is_file() {
        return Ok(ours);
    }
    if let Some(there) = find_in_path("mdbook") {
        return Ok(there);
    }
    println!("Installing mdBook {VERSION} into target/docs-tools");
    let install = ["install", "mdbook", "--locked", "--no-default-features", "--version", VERSION];
    must(cargo().args(install).arg("--root").arg(&tools))?;
    Ok(ours)
}
