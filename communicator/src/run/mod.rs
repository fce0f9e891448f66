//! A node's part in a run, from prepare to the saved model. A pure core: events with the time in, effects out.
//!
//! ```text
//!  StartTraining ─▶ preparing ─▶ opening ─▶ training ─▶ settling ─▶ finishing ─▶ ended
//!                  (coordinated by the      (no centre: beats carry the states of all;
//!                   node that was asked)     a missed beat is made good by the next)
//! ```
//!
//! `core` takes events, `starting` starts runs, and `beats` handles the beats of other nodes; `hearing` takes the
//! messages of participants and workers; `active` is one run, and `views` describes it to others. `states` holds the
//! data of each state, and `preparing`, `training`, `settling`, `finishing` and `pipeline_end` act on it; `leaving` is
//! the departure of a node from a run that goes on, and `stalling` helps a run in which no worker trains. `members`
//! decides which participants are alive and waited for, `coordination` which can take part; `ending` makes the result,
//! and `waiting` finds what a run waits for. Time limits are handed in. The node's actor carries out the effects.

mod active;
mod beats;
mod checkpoint_search;
mod coordination;
mod core;
mod cutting;
mod dismissals;
mod ending;
mod event;
mod finishing;
mod going_back;
mod guests;
mod hearing;
mod leaving;
mod members;
mod patience;
mod pipeline_end;
mod preparing;
mod settling;
mod stalling;
mod starting;
mod states;
mod training;
mod views;
mod waiting;

pub(crate) use self::core::RunCore;
pub(crate) use event::{
    ExchangeOrder, Liveness, MemberChange, Progress, RunEffect, RunEvent, Saving, Settlement, Ticket, WorkerKey,
};
pub(crate) use views::RunReport;
