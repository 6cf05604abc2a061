//! Streams the steps of a switchover as JSON lines, and keeps the connection alive between them.

use std::time::Duration;

use bytes::Bytes;
use sentinel::SwitchoverStep;
use serde_json::json;
use tokio::sync::mpsc;

use super::millis;

/// Interval of the empty lines sent while no step happens. The admin server notices a client that
/// left only by writing to it, since one that has merely closed its sending side still expects the
/// response.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(100);

/// Whether the client is still there. The first empty line to one that has disconnected provokes a
/// reset, and the second one finds it.
pub(super) async fn is_connected(lines: &mpsc::Sender<Bytes>) -> bool {
    for _ in 0..2 {
        let _ = lines.try_send(Bytes::from_static(b"\n"));
        let _ = tokio::time::timeout(KEEP_ALIVE_INTERVAL / 2, lines.closed()).await;
    }
    !lines.is_closed()
}

/// Sends the steps as lines until there are no more or the client is gone. The sender of `steps`
/// notices the latter at once, without waiting for the next step.
pub(super) async fn stream_steps(
    mut steps_received: mpsc::Receiver<SwitchoverStep>,
    lines: mpsc::Sender<Bytes>,
) -> mpsc::Sender<Bytes> {
    loop {
        let it = tokio::select! {
            it = steps_received.recv() => it,
            () = lines.closed() => None,
            () = tokio::time::sleep(KEEP_ALIVE_INTERVAL) => {
                // A line that does not fit is not needed: the channel already has data to write.
                let _ = lines.try_send(Bytes::from_static(b"\n"));
                continue;
            }
        };
        let Some(it) = it else { return lines };
        let line = json!({ "after_ms": millis(it.after), "step": it.step, "text": it.text });
        if lines.send(format!("{line}\n").into()).await.is_err() {
            return lines;
        }
        // The next step is taken only when this line has been passed on: priorities are changed
        // after that.
        let all = lines.reserve_many(lines.max_capacity());
        let _ = tokio::time::timeout(KEEP_ALIVE_INTERVAL, all).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn closes_step_channel_when_client_leaves() {
        let (steps, steps_received) = mpsc::channel(1);
        let (lines, mut body) = mpsc::channel(1);
        let passing = tokio::spawn(stream_steps(steps_received, lines));
        let it = SwitchoverStep {
            after: Duration::from_millis(7),
            step: "hold",
            text: "held".to_owned(),
        };
        steps.send(it).await.unwrap();
        let line = body.recv().await.unwrap();
        assert_eq!(&line[..], b"{\"after_ms\":7,\"step\":\"hold\",\"text\":\"held\"}\n");
        assert!(!steps.is_closed());
        // Between steps, keep-alives are written.
        assert_eq!(&body.recv().await.unwrap()[..], b"\n");
        drop(body);
        // Without another step.
        tokio::time::timeout(Duration::from_secs(5), steps.closed()).await.unwrap();
        drop(passing.await.unwrap());
    }
}
