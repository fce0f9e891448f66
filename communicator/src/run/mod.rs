//! A node's part in a run, from prepare to the saved model. A pure core: events with the time in, effects out.
//!
//! ```text
//!  StartTraining ─▶ preparing ─▶ opening ─▶ training ─▶ settling ─▶ finishing ─▶ ended
//!                  (coordinated by the      (no centre: beats carry everybody's state;
//!                   node that was asked)     whoever misses one hears the next)
//! ```
//!
//! `core` takes events, `starting` gets runs going and `beats` are what other nodes tell of theirs; `hearing` is what others
//! and workers say in a run; `active` is one run, and `views` how it looks to others. What
//! it has in each of its states is in `states`, what it does there in `preparing`, `training`, `settling`, `finishing` and
//! `pipeline_end`; `leaving` is how a node ends that others go on without, `stalling` what is done where nobody trains.
//! `members` knows who lives and who is waited for, `coordination` who can take part, `ending`
//! what a run comes to, `waiting` what it waits for. Its time limits are handed in. The node's actor carries
//! out what is decided here.

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
