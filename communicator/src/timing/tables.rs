//! Tables of the times of each part of a node, with their defaults. Every time on which another one depends is a number
//! here and nowhere else.

use std::time::Duration;

use protocol::job::Job;

/// Declares a table of times: each field is declared once, with its meaning and its default, so that none can be
/// forgotten where all are checked or divided.
macro_rules! times {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $field:ident = $time:expr,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name {
            $($(#[$meaning])* pub(crate) $field: Duration,)+
        }

        impl $name {
            /// The default of each interval and time limit of this table.
            pub(super) const DEFAULT: Self = Self { $($field: $time,)+ };

            /// Returns true if no time in the table is zero: a clock without a pause would starve all else, and a limit
            /// of zero would always be over.
            pub(super) fn are_positive(&self) -> bool {
                [$(self.$field),+].iter().all(|time| !time.is_zero())
            }

            /// Returns all times of the table divided by `by`.
            #[cfg(test)]
            pub(super) fn divided(&self, by: u32) -> Self {
                Self { $($field: self.$field / by,)+ }
            }
        }
    };
}

times! {
    /// Intervals at which a node's actors do their periodic work.
    ClockTimes {
        /// Period at which the membership looks for silent members, and for members to dial.
        membership_tick = Duration::from_millis(100),
        /// Period of the clock ticks at which a node's run checks its time limits.
        run_tick = Duration::from_millis(200),
        /// Period of the clock ticks for the exchange of batches. If few batches arrive, their acknowledgements wait
        /// for the next tick.
        exchange_tick = Duration::from_millis(50),
        /// Interval between two records, in which this node tells all others what its workers did.
        record = Duration::from_secs(1),
        /// Interval between two reports of the exchange to the run's actor, from which records of statistics are made.
        report = Duration::from_secs(1),
        /// Interval at which the digest of a node's ledger (its replica of the weights) is recomputed, to find bits
        /// that have flipped.
        audit = Duration::from_secs(30),
        /// Interval at which the control plane looks for connections that take too long.
        sweep = Duration::from_secs(1),
        /// Interval at which the supervisor of workers checks that their socket is still there.
        socket_look = Duration::from_secs(2),
    }
}

times! {
    /// Intervals and time limits for joining and leaving a cluster.
    JoinTimes {
        /// Time limit for one attempt of a joining node to reach a seed (an address given for joining).
        dial = Duration::from_secs(5),
        /// Time for which a joining node tries to reach a seed (an address given for joining) before it gives up.
        limit = Duration::from_mins(1),
        /// Pause of a joining node between two rounds of attempts to reach its seeds (addresses given for joining).
        pause = Duration::from_millis(300),
        /// Time that other nodes get to hear this node's good-bye.
        goodbye = Duration::from_secs(1),
        /// Time that a node which could not leave its run in time takes to tell the others so.
        unfinished = Duration::from_secs(1),
    }
}

times! {
    /// Intervals and time limits of the cluster's membership.
    MembershipTimes {
        /// Interval between two beats (periodic state messages) of a node.
        beat_every = Duration::from_millis(500),
        /// Time without beats (periodic state messages) after which a member is silent.
        away_after = Duration::from_millis(2500),
        /// Time without beats (periodic state messages) after which a member is forgotten.
        forget_after = Duration::from_mins(10),
        /// Time without beats (periodic state messages) after which a participant of this node's run is forgotten. It
        /// is much longer than for other members, because both sides of a partition have learned something that the
        /// other needs.
        forget_participant_after = Duration::from_hours(24),
        /// Time after which a node that was heard of, but never heard itself, is forgotten: another member may have
        /// invented it.
        forget_rumour_after = Duration::from_mins(1),
        /// Time limit for one attempt to reach a member.
        dial = Duration::from_secs(5),
        /// First pause between two attempts to reach a member; it doubles each time.
        dial_pause = Duration::from_millis(200),
        /// Longest pause between two attempts to reach a member.
        dial_pause_max = Duration::from_secs(10),
        /// Of two nodes without a session, the one with the lower id dials first. The other one waits this long before
        /// it dials, too.
        dial_patience = Duration::from_secs(1),
        /// Time that a member whose last session broke gets to make a new one, or to send state messages over other
        /// nodes. After that it counts as silent.
        broken_after = Duration::from_secs(1),
        /// Minimum time between two refused dials of a member whose session broke. Only refusals so far apart prove
        /// that the member's process has ended.
        refused_apart = Duration::from_secs(1),
        /// Time without beats (periodic state messages) after which a member loses its name to another living node that
        /// has it.
        succeeded_after = Duration::from_secs(30),
        /// Time that a node with a session may take until its endpoint (the actor that takes messages) is known.
        endpoint = Duration::from_secs(5),
    }
}

times! {
    /// Time limits of a run.
    RunLimits {
        /// Interval between two state messages about this node's runs when nothing has changed.
        beat_every = Duration::from_millis(450),
        /// Time without a new state message of a participant, its own or relayed by other nodes, after which the
        /// participant counts as silent: others may take its samples.
        silent_after = Duration::from_millis(2500),
        /// Time without a new state message of a participant, even one relayed by other nodes, after which the
        /// participant is given up if this node has evidence that its process has ended.
        dead_after = Duration::from_millis(1200),
        /// Time without a new state message of a participant after which the participant is given up, if this node has
        /// evidence that its process has ended, but other nodes have relayed a new state message since. It may live
        /// where only they reach it.
        doubtful_after = Duration::from_secs(5),
        /// Time without a new state message of a participant after which the participant is given up: the run no longer
        /// waits for it. A job may set another time.
        give_up_after = Duration::from_secs(30),
        /// Time after a participant's own message for which states of that participant that other nodes relay are
        /// ignored.
        direct_is_fresh = Duration::from_secs(2),
        /// Gap between two clock ticks of this node from which it concludes that its own process stood still.
        stood_still_after = Duration::from_secs(1),
        /// Time for which this node waits for workers to attach before it answers a request to prepare a run.
        workers_attach = Duration::from_secs(15),
        /// Interval at which nodes that have not answered a request to prepare a run are asked again.
        ask_again = Duration::from_secs(3),
        /// Time that may pass between the request to prepare a run and the beginning of the run. After that the run has
        /// failed.
        begin = Duration::from_mins(10),
        /// Time without news of the coordinator, even from other nodes, after which a node that prepares a run calls
        /// the run off.
        orphaned = Duration::from_secs(8),
        /// Time that nodes may take to look for checkpoints from which a run can be resumed.
        search = Duration::from_secs(20),
        /// Time for which training waits for links between nodes: workers that train without links learn apart from
        /// each other.
        links = Duration::from_secs(3),
        /// Time for which no participant trains, though samples are missing, before others train the missing samples.
        stalled = Duration::from_secs(5),
        /// Time since its last progress for which a large transfer between nodes counts as under way.
        moving = Duration::from_secs(2),
        /// Time for which a node without a ledger (a replica of the weights) stays in a run when no node is there that
        /// could give it one. Then it withdraws.
        stranded = Duration::from_secs(5),
        /// Time without progress, at the end of a run, after which participants that have made all their batches give
        /// up those that they cannot reach.
        settle = Duration::from_secs(30),
        /// Time that workers may take to report the digests of their weights at the end of a run.
        digests = Duration::from_secs(30),
        /// Time for which a node waits until its own worker has saved the model, if another node has measured the
        /// model's quality.
        save = Duration::from_secs(30),
        /// Time for which a node waits until a worker has measured the model's quality and saved the model: for large
        /// models that takes long.
        measure = Duration::from_mins(15),
        /// Time that a worker may take to drop a run that is over.
        dismiss = Duration::from_secs(10),
        /// Time for which other nodes are still told how the previous run ended.
        remember = Duration::from_mins(1),
        /// Time for which a run must wait for the same thing before the log says so.
        say_after = Duration::from_secs(5),
    }
}

impl RunLimits {
    /// Returns the time limits of a run of this job.
    pub(crate) fn of(&self, job: &Job) -> Self {
        let give_up_after = job.give_up_after.map_or(self.give_up_after, Duration::from_secs_f64);
        Self {
            give_up_after,
            // A node that was not given up must still be told how the run ended.
            remember: self.remember.max(give_up_after),
            ..*self
        }
    }
}

times! {
    /// Intervals and time limits of the links between nodes, on the data plane.
    LinkTimes {
        /// Time that a peer may take to answer a request for a link.
        answer = Duration::from_secs(5),
        /// First pause between two attempts to make a link; it doubles each time.
        pause = Duration::from_millis(25),
        /// Longest pause between two attempts to make a link.
        pause_max = Duration::from_secs(2),
        /// Of two nodes without a link, the one with the lower id dials first. The other one waits this long before it
        /// dials, too.
        patience = Duration::from_secs(2),
        /// Age up to which a connection that the node with the lower id has dialled is kept if the one with the higher
        /// id dials, too. Without this rule, two nodes that dial at the same time would replace each other's
        /// connection.
        young = Duration::from_secs(5),
        /// Time after which a missing link is logged.
        say_after = Duration::from_secs(5),
    }
}

times! {
    /// Intervals and time limits of worker processes.
    WorkerTimes {
        /// Time that a worker process may take to send its first message, which describes it, after it has connected to
        /// its node.
        hello = Duration::from_secs(5),
        /// Silence after which a worker is taken for stuck and started again; workers say every second that they are
        /// alive.
        silence = Duration::from_secs(10),
        /// First pause before a worker is started again; it doubles each time.
        restart_pause = Duration::from_millis(250),
        /// Longest pause before a worker is started again.
        restart_pause_max = Duration::from_secs(10),
        /// Run time after which a worker counts as stable: the pause before its next start is then the shortest again.
        steady = Duration::from_secs(30),
        /// Time that worker processes get to end by themselves before they are killed.
        end = Duration::from_secs(2),
    }
}

times! {
    /// Time limits for processes that call this node.
    CallTimes {
        /// Time that the other side of a new connection may take to prove that it holds the cluster's credentials.
        handshake = Duration::from_secs(5),
        /// Time that a caller on the data plane (for batches and models) may take to say what it wants. This node takes
        /// at most as long to find out if it can serve that.
        hello = Duration::from_secs(5),
        /// Time that a client may take to receive one piece of a model.
        piece = Duration::from_secs(30),
        /// Time for which a client that asks for new records waits before it is told that there are none.
        news = Duration::from_secs(2),
    }
}

times! {
    /// Intervals and time limits of the connections of the control plane.
    ControlTimes {
        /// Time that the two ends of a connection may take to prove their names (of nodes or clients) to each other.
        session_hello = Duration::from_secs(5),
        /// Time that a new connection may take until its session can carry messages.
        ready = Duration::from_secs(5),
        /// Silence after which the connection of a node is closed. A node sends state messages twice a second, and one
        /// that was heard and falls silent is noticed much sooner by the membership; this limit is for nodes that were
        /// never heard at all.
        node_silence = Duration::from_secs(10),
        /// Time that a client may stay connected without a request.
        client_silence = Duration::from_mins(1),
        /// Time for which a process that was banned for invalid messages is kept out.
        banned_for = Duration::from_mins(1),
        /// Time that one frame (message) on the control plane may take to arrive as a whole.
        frame = Duration::from_secs(30),
        /// Time that a peer may take to read the bytes that this node writes to its connection in one go. If it takes
        /// longer, the connection is ended.
        stall = Duration::from_secs(10),
        /// Time that a node may take to answer a client that connects.
        call = Duration::from_secs(5),
        /// Interval at which a client looks for the endpoint (the actor that takes messages) of a node that it has
        /// connected to.
        look_again = Duration::from_millis(20),
    }
}
