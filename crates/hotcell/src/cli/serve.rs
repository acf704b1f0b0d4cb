//! `hotcell serve`.

use std::{net::SocketAddr, path::PathBuf};

use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use super::{Exit, Settings, exit::say};
use crate::{
    config::{Config, LogFormat},
    serve::{Daemon, Deps},
    service::{Journal, Notifier, is_journal},
};

pub(super) fn run(
    settings: &Settings,
    listen: Option<SocketAddr>,
    agent_binary: Option<PathBuf>,
) -> Result<(), Exit> {
    // Before there are threads. Sandboxes inherit what we ignore.
    hotcell_nft::default_internal_signals().map_err(|error| Exit::failed(&error))?;
    let config = settings.load(listen, agent_binary)?;
    log(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.worker_threads)
        .thread_name("hotcell")
        .enable_all()
        .build()
        .map_err(|error| Exit::failed(&error))?;
    runtime.block_on(serve(config))
}

async fn serve(config: Config) -> Result<(), Exit> {
    // Taken before anything is opened: a signal while it starts must not be lost.
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| Exit::failed(&error))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| Exit::failed(&error))?;
    let daemon = Box::pin(Daemon::start(config, Deps::default())).await?;
    // For whoever started it with port 0.
    say(&format!("listening on http://{}", daemon.addr()))?;
    let service = Notifier::from_env();
    service.ready(&format!("serving on http://{}", daemon.addr()));
    let sandboxes = daemon.sandboxes();
    let watched = async {
        service
            .keep_alive(async |ms| sandboxes.is_alive(ms).await)
            .await;
        // Nobody watches.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = watched => {}
    }
    service.stopping();
    tokio::select! {
        () = daemon.shutdown() => Ok(()),
        _ = terminate.recv() => Err(Exit::words("told twice to stop: it did not wait")),
        _ = interrupt.recv() => Err(Exit::words("told twice to stop: it did not wait")),
    }
}

/// Libraries that write a line for each question or bad packet of a sandbox, which could fill the log
/// with them. What happened is told by the filters' own events, a few lines at a time.
const HUSHED: [&str; 4] = [
    "hickory_net",
    "hickory_proto",
    "hickory_resolver",
    "hickory_server",
];

fn log(config: &Config) -> Result<(), Exit> {
    let mut directives = config.log_level.clone();
    for library in HUSHED {
        // Whoever names one wants to hear it.
        if !config.log_level.contains(library) {
            directives.push_str(&format!(",{library}=error"));
        }
    }
    let filter = EnvFilter::try_new(&directives)
        .map_err(|error| Exit::words(format!("the log filter is not valid: {error}")))?;
    if config.log_format == LogFormat::Text
        && is_journal()
        && let Ok(journal) = Journal::open()
    {
        let result = tracing_subscriber::registry()
            .with(filter)
            .with(journal)
            .try_init();
        return result.map_err(|error| Exit::words(error.to_string()));
    }
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let result = match config.log_format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    result.map_err(|error| Exit::words(error.to_string()))
}
