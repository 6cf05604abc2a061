//! The server's own table of commands, read once for all shared connections to a server.
//!
//! It is read on a shared connection, before the first request is: so no request is shared that the
//! server's table excludes. The credentials are those of the connection's clients. Where these may
//! not run `COMMAND INFO`, the built-in table counts alone for them. A connection that is opened
//! beside others to the same server uses what these have read. When all of them are gone the table
//! is, too: the next server, or the same one after a restart, may differ.
//!
//! Together with its table the server is asked [whether it limits](limits_clients) what it keeps
//! for a client. Then no connection to it is shared.

use std::rc::Rc;
use std::time::Instant;

use crate::shared::commands::Commands;
use crate::shared::server_limits::{ASK_LIMITS, LARGEST_LIMITS, limits_clients};
use crate::shared::server_table::{LARGEST_TABLE, ask_table, read_table};
use tokio::sync::OnceCell;

use crate::session::carry::replay::{Failed, Server};
use crate::session::upstream::Upstream;
use crate::shared_counters::TableSource;

/// What is known of the table of a server; the connections to it share this. `None` in it: the
/// server's table changes nothing.
#[derive(Debug, Default)]
pub(super) struct CommandTable(OnceCell<Option<Rc<Commands>>>);

/// Why there is no table.
enum NotRead {
    /// The server refuses to show it, or it cannot be understood.
    Refused,
    Failed(Failed),
}

impl CommandTable {
    /// How the server's table differs from the built-in one, if it is known. Read on `upstream` if
    /// that was not done; meanwhile all other connections to the server wait.
    ///
    /// # Errors
    ///
    /// The connection failed.
    pub(super) async fn corrected(
        &self,
        upstream: &mut Upstream,
        server: Server<'_>,
    ) -> Result<(TableSource, Option<Rc<Commands>>), Failed> {
        match self.0.get_or_try_init(|| read(upstream, server)).await {
            Ok(corrected) => Ok((TableSource::Server, corrected.clone())),
            Err(NotRead::Refused) => Ok((TableSource::BuiltIn, None)),
            Err(NotRead::Failed(failed)) => Err(failed),
        }
    }
}

async fn read(
    upstream: &mut Upstream,
    server: Server<'_>,
) -> Result<Option<Rc<Commands>>, NotRead> {
    let Server { target, context, .. } = server;
    let reply = server.ask(upstream, &ask_table(), LARGEST_TABLE).await;
    let reply = reply.map_err(NotRead::Failed)?;
    let (service, addr) = (&*context.shared.service.name, target.addr());
    let limits = server.ask(upstream, ASK_LIMITS, LARGEST_LIMITS).await;
    if limits_clients(&limits.map_err(NotRead::Failed)?) {
        if let Some(unlogged) = context.shared.logs.limited_clients.due(0, Instant::now()) {
            tracing::warn!(
                service, upstream = %addr, unlogged,
                "connections are not shared: the server limits what it keeps for a client \
                 (client-output-buffer-limit normal or maxmemory-clients) and would close them for \
                 one client's large reply"
            );
        }
        return Err(NotRead::Failed(Failed::Refused));
    }
    let Some(table) = read_table(&reply) else {
        tracing::debug!(service, target = %addr, "the server does not show its table of commands");
        return Err(NotRead::Refused);
    };
    let commands = Commands::new(&table);
    if commands.is_built_in() {
        return Ok(None);
    }
    tracing::info!(
        service, target = %addr, excluded = commands.excluded(),
        "the server's table of commands differs, and fewer commands are shared"
    );
    Ok(Some(Rc::new(commands)))
}
