//! What each part of a node waits for, and how long by default. Every time that another one depends on is a number here and
//! nowhere else.

use std::time::Duration;

use protocol::job::Job;

/// Declares a table of times: each field stands in one place with its meaning and its default, and none of them can be
/// forgotten where all are checked or made shorter.
macro_rules! times {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $field:ident = $time:expr,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name {
            $($(#[$meaning])* pub(crate) $field: Duration,)+
        }

        impl $name {
            /// The times of a node that nobody has given others.
            pub(super) const DEFAULT: Self = Self { $($field: $time,)+ };

            /// Whether no time is zero: a clock that ticks without a pause starves all else, and a limit of nothing is
            /// always over.
            pub(super) fn are_positive(&self) -> bool {
                [$(self.$field),+].iter().all(|time| !time.is_zero())
            }

            /// All times, so many times shorter.
            #[cfg(test)]
            pub(super) fn divided(&self, by: u32) -> Self {
                Self { $($field: self.$field / by,)+ }
            }
        }
    };
}

times! {
    /// The clocks of actors: how often each does what it does now and then.
    ClockTimes {
        /// The membership looks who is silent, and whom to dial.
        membership_tick = Duration::from_millis(100),
        /// The run's core is told that time has passed.
        run_tick = Duration::from_millis(200),
        /// The exchange's core is. Acknowledgements of a trickle of batches wait for this tick at most.
        exchange_tick = Duration::from_millis(50),
        /// The run tells everybody what this node did since the last record.
        record = Duration::from_secs(1),
        /// The exchange tells the run what records are made of.
        report = Duration::from_secs(1),
        /// The ledger's digest is recomputed, to find bits that have flipped.
        audit = Duration::from_secs(30),
        /// The control plane looks for connections that take too long.
        sweep = Duration::from_secs(1),
        /// The supervisor of workers looks whether their socket is still there.
        socket_look = Duration::from_secs(2),
    }
}

times! {
    /// Joining a cluster, and leaving it.
    JoinTimes {
        /// How long one attempt to reach a seed may take.
        dial = Duration::from_secs(5),
        /// For how long seeds are tried.
        limit = Duration::from_mins(1),
        /// The pause between two rounds of attempts.
        pause = Duration::from_millis(300),
        /// How long others are given to hear a good-bye.
        goodbye = Duration::from_secs(1),
        /// How long a node that had no time to leave its run waits until it has told so.
        unfinished = Duration::from_secs(1),
    }
}

times! {
    /// Who is there, and who is not any more.
    MembershipTimes {
        /// How often a node says that it is there.
        beat_every = Duration::from_millis(500),
        /// A member that was not heard for so long is silent.
        away_after = Duration::from_millis(2500),
        /// A member that was silent for so long is forgotten.
        forget_after = Duration::from_mins(10),
        /// One that takes part in this node's run is waited for much longer: both sides of a partition have learned
        /// something that the other needs.
        forget_participant_after = Duration::from_hours(24),
        /// A node that was heard of and never heard itself is forgotten sooner: somebody may have invented it.
        forget_rumour_after = Duration::from_mins(1),
        /// How long one attempt to reach a member may take.
        dial = Duration::from_secs(5),
        /// The first pause between two attempts to reach a member; it doubles each time.
        dial_pause = Duration::from_millis(200),
        /// The longest of these pauses.
        dial_pause_max = Duration::from_secs(10),
        /// How long the node with the higher name leaves dialling to the other one.
        dial_patience = Duration::from_secs(1),
        /// A member that has lost its last session is given so long to make a new one, or its beats to come another way.
        broken_after = Duration::from_secs(1),
        /// Two refused dials of a member that are this far apart, after its session broke, prove that its process has ended.
        refused_apart = Duration::from_secs(1),
        /// A member that was silent for so long leaves its name to another node that has it.
        succeeded_after = Duration::from_secs(30),
        /// How long a node that has a session may take to show its endpoint.
        endpoint = Duration::from_secs(5),
    }
}

times! {
    /// How long a run waits for what.
    RunLimits {
        /// How often this node tells the others how far it is, though nothing has changed.
        beat_every = Duration::from_millis(450),
        /// A participant that nothing was heard of for so long, over nobody, is silent: others may take its samples.
        silent_after = Duration::from_millis(2500),
        /// A participant whose process has ended is given up when nothing new of it came over others for so long.
        dead_after = Duration::from_millis(1200),
        /// The same where something new has come over others since that was found: it may live where they alone reach it.
        doubtful_after = Duration::from_secs(5),
        /// A participant that nothing was heard of for so long is not waited for. A job may say another time.
        give_up_after = Duration::from_secs(30),
        /// While a participant itself was heard within this time, what others say of it is not listened to.
        direct_is_fresh = Duration::from_secs(2),
        /// If this node's own clock went on by more than this between two ticks, it is this node that stood still.
        stood_still_after = Duration::from_secs(1),
        /// How long workers that have not attached yet are waited for before this node answers a prepare.
        workers_attach = Duration::from_secs(15),
        /// How often nodes that have not answered a prepare are asked again.
        ask_again = Duration::from_secs(3),
        /// How long a node that is ready waits to hear that the run begins.
        begin = Duration::from_mins(10),
        /// How long nodes wait for a run's beginning when nothing is heard of the node that prepares it: another may know
        /// of it.
        orphaned = Duration::from_secs(8),
        /// How long nodes may take to look for checkpoints.
        search = Duration::from_secs(20),
        /// How long training waits for links: what is learned without them is learned apart.
        links = Duration::from_secs(3),
        /// For so long nobody must have had anything to train, though samples are missing, before others take them over.
        stalled = Duration::from_secs(5),
        /// A node that got some of a large parcel within this time is on its way.
        moving = Duration::from_secs(2),
        /// For so long nobody must have had anything to give before a node that has nothing gives up.
        stranded = Duration::from_secs(5),
        /// How long participants whose batches are all made may fail to get to the same ones before those that cannot be
        /// reached are given up.
        settle = Duration::from_secs(30),
        /// How long workers may take to tell the digest of what they have.
        digests = Duration::from_secs(30),
        /// How long this node's own file is waited for when another node has measured the model.
        save = Duration::from_secs(30),
        /// How long the file is waited for when nobody has: large models take long to measure.
        measure = Duration::from_mins(15),
        /// How long a worker may take to drop a run that is over.
        dismiss = Duration::from_secs(10),
        /// For so long others are told how the run before this one ended.
        remember = Duration::from_mins(1),
        /// What is waited for longer than this is said in the log.
        say_after = Duration::from_secs(5),
    }
}

impl RunLimits {
    /// What a run of this job waits for.
    pub(crate) fn of(&self, job: &Job) -> Self {
        let give_up_after = job.give_up_after.map_or(self.give_up_after, Duration::from_secs_f64);
        Self {
            give_up_after,
            // Who was not given up must still be told how the run ended.
            remember: self.remember.max(give_up_after),
            ..*self
        }
    }
}

times! {
    /// Links of the data plane.
    LinkTimes {
        /// How long a peer may take to answer a call.
        answer = Duration::from_secs(5),
        /// The first pause between two attempts to make a link; it doubles each time.
        pause = Duration::from_millis(25),
        /// The longest of these pauses.
        pause_max = Duration::from_secs(2),
        /// How long the node with the higher name leaves dialling to the other one.
        patience = Duration::from_secs(2),
        /// A connection that the higher name has dialled does not displace one of the lower's that is younger than this:
        /// both may have dialled at the same time, and would displace each other's.
        young = Duration::from_secs(5),
        /// A link that is missing for so long is worth a line in the log.
        say_after = Duration::from_secs(5),
    }
}

times! {
    /// Worker processes.
    WorkerTimes {
        /// How long a process that attaches may take to say who it is.
        hello = Duration::from_secs(5),
        /// A worker that says nothing for so long, though it would say every second that it is alive, is stuck.
        silence = Duration::from_secs(10),
        /// The pause before a worker is started again; it doubles each time.
        restart_pause = Duration::from_millis(250),
        /// The longest of these pauses.
        restart_pause_max = Duration::from_secs(10),
        /// A worker that has run for so long is not one that fails at once.
        steady = Duration::from_secs(30),
        /// How long workers are given to end by themselves.
        end = Duration::from_secs(2),
    }
}

times! {
    /// Those who call this node, and those whom it calls.
    CallTimes {
        /// How long a stranger may take to prove that it holds the cluster's credentials.
        handshake = Duration::from_secs(5),
        /// How long a caller on the data plane may take to say what it wants, and this node to find out whether the caller
        /// can have it.
        hello = Duration::from_secs(5),
        /// How long a caller may take for one piece of a model.
        piece = Duration::from_secs(30),
        /// How long a reader of stats waits for news before it is told that there is none.
        news = Duration::from_secs(2),
    }
}

times! {
    /// Connections of the control plane.
    ControlTimes {
        /// How long both ends of a connection may take to prove their names.
        session_hello = Duration::from_secs(5),
        /// How long a connection may take to become a session.
        ready = Duration::from_secs(5),
        /// How long a node may say nothing, though its beats should come twice a second. The membership takes it for silent
        /// much sooner; this limit is for those that were never heard at all.
        node_silence = Duration::from_secs(10),
        /// How long a client may ask nothing.
        client_silence = Duration::from_mins(1),
        /// For how long a process that was sent away is kept out.
        banned_for = Duration::from_mins(1),
        /// How long one frame may take to come.
        frame = Duration::from_secs(30),
        /// How long a peer may take to read what is in one pipe.
        stall = Duration::from_secs(10),
        /// How long a node may take to answer a client's call.
        call = Duration::from_secs(5),
        /// How often a client looks for the endpoint of a node that it has called.
        look_again = Duration::from_millis(20),
    }
}
