//! How lines of the file are shown: without secrets, on one line of bounded length.
//!
//! Hidden are checks that may authenticate, users of the statistics page, variables that are set,
//! the arguments of unknown keywords, and words with credentials.

use crate::config_file::Directive;
use crate::keywords;
use crate::tokenizer::{Fragment, Word, safe_word, shorten, without_credentials};

/// The longest line that is shown, in characters.
const MAX_LINE: usize = 90;

/// Commands of a check without secret arguments.
const HARMLESS: &[&str] =
    &["PING", "INFO", "ROLE", "QUIT", "SENTINEL", "SELECT", "COMMAND", "TIME"];

/// A line as it is shown.
pub(super) fn line(directive: &Directive) -> String {
    let first = directive.word(0);
    let sends = directive.begins(&["tcp-check"]) && directive.word(1).starts_with("send");
    let harmless = directive.words.get(2).and_then(single_command);
    let harmless = harmless.is_some_and(|it| HARMLESS.contains(&it.as_str()));
    let hidden = ["setenv", "presetenv", "email-alert"].contains(&first.as_str())
        || directive.begins(&["stats", "auth"])
        || (sends && !harmless);
    if hidden {
        shorten(&format!("{first} {} …", directive.word(1)), MAX_LINE)
    } else if keywords::is_known(&first) {
        let words: Vec<String> = directive.words.iter().map(ToString::to_string).collect();
        let words: Vec<&str> = words.iter().map(|word| without_credentials(word)).collect();
        shorten(&words.join(" "), MAX_LINE)
    } else {
        keyword_only(directive)
    }
}

/// A line of which only the keyword is shown.
pub(super) fn keyword_only(directive: &Directive) -> String {
    format!("{} …", safe_word(&directive.word(0)))
}

/// The command in upper case, if the text is exactly one: a second one could hide a password.
fn single_command(data: &Word) -> Option<String> {
    let text = data.fragments.iter().map(|fragment| match fragment {
        Fragment::Text(text) => text.as_str(),
        Fragment::Variable { .. } => "$",
    });
    let text: String = text.collect();
    let mut lines = text.trim_end().lines();
    let command = lines.next()?.split(' ').next().unwrap_or_default().to_uppercase();
    lines.next().is_none().then_some(command)
}
