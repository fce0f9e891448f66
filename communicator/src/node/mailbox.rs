//! Tools that the actors of a node share: limits for mailboxes, and notices to the actor that started another.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Waits for a permit to put one more message into an actor's mailbox, which itself has no limit.
pub(super) async fn acquire(room: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    // The semaphore is never closed.
    Arc::clone(room).acquire_owned().await.ok()
}

/// Converts a child's notices to messages of its parent actor, so that the child need not know its parent's type.
macro_rules! notice {
    ($parent:ident::$variant:ident($child:ty)) => {
        impl From<$child> for $parent {
            fn from(told: $child) -> Self {
                Self::$variant(told)
            }
        }

        impl TryFrom<$parent> for $child {
            type Error = ();

            fn try_from(message: $parent) -> Result<Self, ()> {
                match message {
                    $parent::$variant(told) => Ok(told),
                    _ => Err(()),
                }
            }
        }
    };
}

pub(super) use notice;
