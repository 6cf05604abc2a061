//! How lines of the file are shown: without secrets, on one line of bounded length.
//!
//! Hidden are what checks send, users of the statistics page, variables that are set,
//! rules about HTTP, conditions on what clients send, the arguments of unknown keywords, and words
//! with credentials.

use crate::keywords;
use crate::sections::Directive;
use crate::tokenizer::{safe_word, shorten, without_credentials};

/// The longest line that is shown, in characters.
const MAX_LINE: usize = 90;

/// Keywords of which only the next word is shown.
const HIDDEN: &str = "setenv, presetenv, email-alert, stats auth, option httpchk, tcp-check comment, redirect, \
                      http-after-response, http-check, http-error, http-request, http-response";
/// Beginnings of what conditions may be about without containing a secret.
const SAFE_FETCHES: &[&str] = &["src", "dst", "nbsrv", "srv_is_up"];

/// A line as it is shown.
pub(super) fn line(directive: &Directive) -> String {
    let first = directive.word(0);
    if !keywords::is_known(&first) || first == "rspadd" {
        return keyword_only(directive);
    }
    let sends = directive.begins("tcp-check") && directive.word(1).starts_with("send");
    let is_hidden = sends || HIDDEN.split(", ").any(|it| directive.begins(it));
    let words: Vec<String> = directive.words.iter().map(ToString::to_string).collect();
    let is_acl = directive.begins("acl");
    let is_fetch = |at: usize| {
        at == 2 && is_acl || at > 0 && words.get(at - 1).is_some_and(|it| it.ends_with('{'))
    };
    let is_safe = |word: &str| SAFE_FETCHES.iter().any(|it| word.starts_with(it));
    let is_shown = |(at, word): &(usize, &String)| {
        let may_be_secret = word.starts_with("set-var") || is_fetch(*at) && !is_safe(word);
        !may_be_secret && (*at < 2 || !is_hidden)
    };
    let shown = words.iter().enumerate().take_while(is_shown);
    let shown: Vec<&str> = shown.map(|(_, word)| without_credentials(word)).collect();
    let rest = if shown.len() < words.len() { " …" } else { "" };
    shorten(&format!("{}{rest}", shown.join(" ")), MAX_LINE)
}

/// A line of which only the keyword is shown.
pub(super) fn keyword_only(directive: &Directive) -> String {
    format!("{} …", safe_word(&directive.word(0)))
}
