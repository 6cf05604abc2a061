//! Shrinks a conversation while it still differs: clients, then runs of steps, then requests, then
//! splits of bytes. Pure; the caller says what differs.

use super::conversation::{Action, Conversation, Step};

/// A smaller conversation that still differs. `differs` is called at most `budget` times.
pub(super) fn minimise(
    conversation: &Conversation,
    budget: usize,
    differs: &mut dyn FnMut(&Conversation) -> bool,
) -> Conversation {
    let mut search = Search { best: conversation.clone(), left: budget, differs };
    let clients = search.best.steps.iter().map(|step| step.client).max().unwrap_or(0);
    for client in 0..=clients {
        let is_kept = |step: &Step| step.client != client || is_common(&step.action);
        search.attempt(search.best.steps.iter().filter(|step| is_kept(step)).cloned().collect());
    }
    let mut length = search.best.steps.len() / 2;
    while length > 0 {
        let mut at = 0;
        while at < search.best.steps.len() {
            let mut steps = search.best.steps.clone();
            steps.drain(at..(at + length).min(steps.len()));
            if !search.attempt(steps) {
                at += length;
            }
        }
        length /= 2;
    }
    for at in 0..search.best.steps.len() {
        search.shrink_step(at);
    }
    search.best
}

fn is_common(action: &Action) -> bool {
    matches!(action, Action::Operator(_) | Action::Pause(_) | Action::Failover)
}

struct Search<'a> {
    best: Conversation,
    left: usize,
    differs: &'a mut dyn FnMut(&Conversation) -> bool,
}

impl Search<'_> {
    fn attempt(&mut self, steps: Vec<Step>) -> bool {
        let smaller = Conversation { steps };
        if self.left == 0 || smaller == self.best {
            return false;
        }
        self.left -= 1;
        let differs = (self.differs)(&smaller);
        if differs {
            self.best = smaller;
        }
        differs
    }

    fn shrink_step(&mut self, at: usize) {
        let sent = |best: &Conversation| match best.steps.get(at).map(|step| &step.action) {
            Some(Action::Send { requests, cuts, .. }) => (requests.len(), cuts.len()),
            _ => (0, 0),
        };
        let (mut request, cuts) = (0, sent(&self.best).1);
        if cuts > 0 {
            self.change(at, |_, cuts| cuts.clear());
        }
        let mut length = sent(&self.best).0 / 2;
        while length > 0 {
            while request < sent(&self.best).0 && sent(&self.best).0 > 1 {
                let to = (request + length).min(sent(&self.best).0);
                let is_removed = self.change(at, |requests, cuts| {
                    requests.drain(request..to);
                    cuts.clear();
                });
                if !is_removed {
                    request += length;
                }
            }
            request = 0;
            length /= 2;
        }
    }

    fn change(
        &mut self,
        at: usize,
        change: impl Fn(&mut Vec<super::conversation::Request>, &mut Vec<usize>),
    ) -> bool {
        let mut steps = self.best.steps.clone();
        if let Some(Action::Send { requests, cuts, .. }) =
            steps.get_mut(at).map(|step| &mut step.action)
        {
            change(requests, cuts);
        }
        self.attempt(steps)
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
                let least = minimise(&whole, 1000, &mut differs);
                assert!(differs(&least) && least.steps.len() <= 2, "{least}");
                assert!(least.to_string().matches(" ; ").count() <= 1, "{least}");
                shrunk += 1;
            }
        }
        assert!(shrunk > 20, "{shrunk}");
    }

    #[test]
    fn stays_within_its_budget() {
        let profile = Profile { is_shared: false, has_failover: false };
        let mut calls = 0;
        minimise(&conversation(1, profile), 10, &mut |_| {
            calls += 1;
            false
        });
        assert_eq!(calls, 10);
    }
}
