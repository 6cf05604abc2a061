//! Keeps the list of commands in `docs/shared-commands.md` current.
#![allow(clippy::expect_used, clippy::panic, reason = "tests report by a clear panic")]

use std::collections::BTreeMap;
use std::path::Path;

use resp::{PromotionReason, Sharing, listed_commands, sharing_of};

const BEGIN: &str =
    "<!-- promotions: UPDATE=1 cargo test -p pointsman-resp --test shared_commands -->\n";
const END: &str = "<!-- end of promotions -->\n";

/// A command of the table as it is sent: some effects depend on what follows a name.
fn as_sent(name: &str) -> String {
    match name {
        "FT.AGGREGATE ... WITHCURSOR" => "FT.AGGREGATE i q WITHCURSOR".to_owned(),
        "FT.HYBRID ... WITHCURSOR" => "FT.HYBRID i q WITHCURSOR".to_owned(),
        "SCAN" => "SCAN 0".to_owned(),
        "HSCAN" | "SSCAN" | "ZSCAN" => format!("{name} k 0"),
        name => name.to_owned(),
    }
}

#[test]
fn lists_every_promoting_command_in_the_document() {
    let mut promotes: BTreeMap<PromotionReason, Vec<String>> = BTreeMap::new();
    for command in listed_commands() {
        if let Sharing::Promotes(reason) = sharing_of(&as_sent(&command.name)) {
            promotes.entry(reason).or_default().push(format!("`{}`", command.name));
        }
    }
    let mut made = String::from("| Promotes | Why | Reason in metrics |\n|---|---|---|\n");
    for &reason in PromotionReason::ALL {
        let names = match reason {
            PromotionReason::Module => "commands of modules".to_owned(),
            PromotionReason::Unknown => "a command that is not known".to_owned(),
            PromotionReason::ServerTable => "a command that the server excludes".to_owned(),
            PromotionReason::Inline => "inline commands, unusual framing".to_owned(),
            PromotionReason::LargeRequest => "a request of more than 64 KiB".to_owned(),
            PromotionReason::LargeReply => "a client that reads large replies".to_owned(),
            PromotionReason::NotAuthenticated => "a client that has to authenticate".to_owned(),
            reason => promotes.get(&reason).expect("a command").join(", "),
        };
        made += &format!("| {names} | {} | `{}` |\n", reason.meaning(), reason.label());
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/shared-commands.md");
    let document = std::fs::read_to_string(&path).expect("the document");
    let (before, rest) = document.split_once(BEGIN).expect("the begin marker");
    let (_, after) = rest.split_once(END).expect("the end marker");
    let wanted = format!("{before}{BEGIN}\n{made}\n{END}{after}");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, wanted).expect("a writable document");
    } else {
        assert!(
            document == wanted,
            "run UPDATE=1 cargo test -p pointsman-resp --test shared_commands"
        );
    }
}
