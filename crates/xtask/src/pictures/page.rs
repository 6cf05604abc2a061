//! A screenshot of the status page by a headless Chromium.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use harness::{BROWSERS, find_in_path};

/// In CSS pixels: wide enough for the desktop layout, and as high as one service needs.
const SIZE: &str = "1100,1090";
/// How long the page runs before the screenshot, in milliseconds: it has fetched and drawn the
/// status by then.
const TIME: &str = "4000";

/// Takes a screenshot of a page. The browser keeps its profile in `folder`.
///
/// # Errors
/// A message for people, if there is no browser, or it writes no picture.
pub(super) fn photograph(url: &str, folder: &Path, file: &Path) -> Result<(), String> {
    let named = std::env::var_os("CHROMIUM").map(PathBuf::from);
    let browser = named.or_else(|| BROWSERS.iter().find_map(|name| find_in_path(name)));
    let mut command = Command::new(browser.ok_or("chromium is missing")?);
    // Root has no sandbox, and /dev/shm is small in containers; the only page is our own.
    command.args([
        "--headless=new",
        "--disable-gpu",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ]);
    command.args([
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
    ]);
    command.arg(format!("--window-size={SIZE}")).arg(format!("--virtual-time-budget={TIME}"));
    command.arg(format!("--user-data-dir={}", folder.join("profile").display()));
    // Written to a new file first: the picture of an earlier run would hide that none was written.
    let fresh = folder.join("screenshot.png");
    command.arg(format!("--screenshot={}", fresh.display())).arg(url);
    command.env("HOME", folder).env("XDG_CONFIG_HOME", folder).env("XDG_CACHE_HOME", folder);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let done =
        command.output().map_err(|error| format!("the browser cannot be started: {error}"))?;
    let said = || String::from_utf8_lossy(&done.stderr).into_owned();
    fs::copy(&fresh, file)
        .map(drop)
        .map_err(|error| format!("no screenshot: {error}; the browser says: {}", said()))
}
