//! Shrinks a conversation while it still differs: steps, then splits of bytes and requests. Pure;
//! the caller says what differs.

use super::conversation::{Action, Conversation};

/// A smaller conversation that still differs: nothing of it can be left out.
pub(super) fn minimise(
    conversation: &Conversation,
    differs: &mut dyn FnMut(&Conversation) -> bool,
) -> Conversation {
    let mut best = conversation.clone();
    for at in (0..best.steps.len()).rev() {
        try_without(&mut best, differs, |it| drop(it.steps.remove(at)));
    }
    for at in 0..best.steps.len() {
        let Some(Action::Send { requests, .. }) = best.steps.get(at).map(|it| &it.action) else {
            continue;
        };
        let last = requests.len().saturating_sub(1);
        try_without(&mut best, differs, |it| change(it, at, None));
        for request in (0..=last).rev() {
            try_without(&mut best, differs, |it| change(it, at, Some(request)));
        }
    }
    best
}

fn try_without(
    best: &mut Conversation,
    differs: &mut dyn FnMut(&Conversation) -> bool,
    leave_out: impl FnOnce(&mut Conversation),
) {
    let mut smaller = best.clone();
    leave_out(&mut smaller);
    if smaller != *best && differs(&smaller) {
        *best = smaller;
    }
}

/// Sends a step in one write, without one of its requests unless it is the only one.
fn change(conversation: &mut Conversation, at: usize, request: Option<usize>) {
    let step = conversation.steps.get_mut(at).map(|it| &mut it.action);
    if let Some(Action::Send { requests, cuts, .. }) = step {
        cuts.clear();
        if let Some(request) = request.filter(|_| requests.len() > 1) {
            requests.remove(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::generator::{Profile, conversation};
    use super::*;

    #[test]
    fn keeps_only_what_differs() {
        let profile = Profile { is_shared: false, has_failover: false };
        let mut shrunk = 0;
        for seed in 0..200 {
            let whole = conversation(seed, profile);
            let mut differs = |it: &Conversation| {
                let text = it.to_string();
                text.contains("GET k1") && text.contains("INCR kn")
            };
            if differs(&whole) {
                let least = minimise(&whole, &mut differs);
                assert!(differs(&least) && least.steps.len() <= 2, "{least}");
                assert!(least.to_string().matches(" ; ").count() <= 1, "{least}");
                shrunk += 1;
            }
        }
        assert!(shrunk > 20, "{shrunk}");
    }
}
