//! What actors of a node have in common: room in mailboxes, and notices to the actor that started them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Waits until one more message may be in somebody's mailbox, which itself knows no limit.
pub(super) async fn acquire(room: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    // The semaphore is never closed.
    Arc::clone(room).acquire_owned().await.ok()
}

/// Makes what a child tells a message of its parent, so that the child need not know whose child it is.
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
