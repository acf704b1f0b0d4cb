//! Watches over the packet filter of one namespace: whatever others do to it is undone, told and
//! written down.
//!
//! ```text
//!   watcher ──Changed──► compare ──same──► nothing
//!                           └──different──► cut off ► restore ► events, audit, alarm
//!                                                └── failed ──► again after a pause
//! ```

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use hotcell_core::model::{Actor as Who, AuditRow};
use hotcell_egress::host::Change;
use hotcell_store::StoreError;
use hotcell_types::limits;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::task::JoinSet;

use super::{
    chain,
    space::{Space, Verified},
};
use crate::{
    actors::context::Context,
    egress::{Happened, of_differences},
};

/// What a guard is told.
#[derive(Debug)]
pub(crate) enum GuardMsg {
    /// Compare now; nobody in particular is suspected.
    Verify,
    /// Somebody else changed the packet filter.
    Changed(Change),
    /// Nobody watches any more.
    Blind,
    /// Nobody speaks with the kernel any more.
    Ended,
}

/// The guard of one space.
pub(crate) struct GuardActor;

/// What a guard is started with, the first time and after a crash.
#[derive(Clone)]
pub(crate) struct GuardArguments {
    pub(crate) context: Arc<Context>,
    pub(crate) space: Arc<Space>,
}

/// What one guard knows.
pub(crate) struct GuardState {
    context: Arc<Context>,
    space: Arc<Space>,
    tasks: JoinSet<()>,
    /// Whether a failure to restore was told already.
    told_broken: bool,
}

#[ractor::async_trait]
impl Actor for GuardActor {
    type Msg = GuardMsg;
    type State = GuardState;
    type Arguments = GuardArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<GuardMsg>,
        args: GuardArguments,
    ) -> Result<GuardState, ActorProcessingErr> {
        let mut changes = args.space.edge().watch().await?;
        let mut tasks = JoinSet::new();
        let watcher = myself.clone();
        tasks.spawn(async move {
            let watching = async {
                while let Some(change) = changes.changed().await {
                    if watcher.cast(GuardMsg::Changed(change)).is_err() {
                        return;
                    }
                }
            };
            let _ = AssertUnwindSafe(watching).catch_unwind().await;
            let _ = watcher.cast(GuardMsg::Blind);
        });
        let edge = args.space.edge();
        let listener = myself.clone();
        tasks.spawn(async move {
            edge.ended().await;
            let _ = listener.cast(GuardMsg::Ended);
        });
        match args.space.denied().await {
            Ok(Some(mut denied)) => {
                let space = Arc::clone(&args.space);
                tasks.spawn(async move {
                    while let Some(packet) = denied.next().await {
                        space.tell_denied(&packet);
                    }
                });
            }
            Ok(None) => {}
            // They are dropped all the same.
            Err(error) => tracing::warn!(error = chain(&error), "dropped packets are not told of"),
        }
        // Something may have happened before anybody watched.
        myself.cast(GuardMsg::Verify)?;
        Ok(GuardState {
            context: args.context,
            space: args.space,
            tasks,
            told_broken: false,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<GuardMsg>,
        message: GuardMsg,
        state: &mut GuardState,
    ) -> Result<(), ActorProcessingErr> {
        while state.tasks.try_join_next().is_some() {}
        match message {
            GuardMsg::Verify => state.verify(&myself, None).await,
            GuardMsg::Changed(change) => state.verify(&myself, change.process).await,
            GuardMsg::Blind => return Err("the packet filter is no longer watched".into()),
            // A successor watches anew, and compares first.
            GuardMsg::Ended if state.reopen(&myself).await => {
                return Err("the packet filter was opened again".into());
            }
            GuardMsg::Ended => {}
        }
        Ok(())
    }
}

impl GuardState {
    async fn verify(&mut self, myself: &ActorRef<GuardMsg>, process: Option<String>) {
        let (differences, failure) = match self.space.verify().await {
            Ok(Verified::Unchanged) => {
                self.told_broken = false;
                return;
            }
            Ok(Verified::Restored(differences)) => (differences, None),
            Ok(Verified::Broken(differences, error)) => (differences, Some(chain(&error))),
            Err(error) => (Vec::new(), Some(chain(&error))),
        };
        if failure.is_some() {
            self.again(myself, GuardMsg::Verify);
        }
        // A failure that goes on is told once.
        let is_news = failure.is_none() || !self.told_broken;
        self.told_broken = failure.is_some();
        if !is_news {
            return;
        }
        let table = self.space.table().as_str().to_owned();
        let named = of_differences(&differences);
        tracing::error!(
            table,
            process = process.as_deref().unwrap_or("somebody else"),
            differences = named.join(", "),
            failure,
            "ALARM: the packet filter of sandboxes was changed by somebody else"
        );
        let happened = Happened::ForeignChange {
            process,
            differences: named.clone(),
            restored: failure.is_none(),
        };
        self.space.tell_all(&happened).await;
        self.write_down(table, named, failure.is_none()).await;
    }

    /// Whoever spoke with the kernel is gone. The rules are as they were, and nothing new can be
    /// opened until somebody else does. Whether somebody does.
    async fn reopen(&mut self, myself: &ActorRef<GuardMsg>) -> bool {
        let table = self.space.table().as_str();
        let reopened = self.context.egress.reopen(&self.space).await;
        let failure = reopened.err().map(|error| error.to_string());
        let is_news = failure.is_none() || !self.told_broken;
        self.told_broken = failure.is_some();
        if is_news {
            tracing::error!(
                table,
                failure,
                "ALARM: the packet filter's thread ended by a fault"
            );
            let next = match &failure {
                None => "it was opened again and is compared".to_owned(),
                Some(why) => format!("it cannot be opened again yet: {why}"),
            };
            let why = format!("its thread ended by a fault; {next}");
            let happened = Happened::PacketFilterFailed { name: None, why };
            self.space.tell_all(&happened).await;
        }
        if failure.is_some() {
            self.again(myself, GuardMsg::Ended);
        }
        failure.is_none()
    }

    fn again(&mut self, myself: &ActorRef<GuardMsg>, message: GuardMsg) {
        let myself = myself.clone();
        self.tasks.spawn(async move {
            tokio::time::sleep(Duration::from_millis(limits::FILTER_RETRY_MS)).await;
            let _ = myself.cast(message);
        });
    }

    async fn write_down(&self, table: String, fields: Vec<String>, restored: bool) {
        let row = AuditRow {
            at: self.context.clock.now(),
            actor: Who::System,
            action: if restored {
                "packet_filter.restored".into()
            } else {
                "packet_filter.broken".into()
            },
            subject: format!("packet_filter/{table}"),
            fields,
            request: None,
        };
        let written = self
            .context
            .store
            .write::<(), StoreError, _>(move |tx| {
                tx.audit(row)?;
                Ok(())
            })
            .await;
        if let Err(error) = written {
            tracing::error!(%error, "a foreign change of the packet filter could not be written down");
        }
    }
}
