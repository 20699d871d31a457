//! What an ATP job does without workers that are lost or late (ATP App. A.3, A.4).

use crate::proto;

/// Longer than any collective may take.
const AFTER_US_MAX: u64 = 3_600_000_000;

/// The same at all ranks of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Absences {
    /// A lost worker does not end the job: it is set up again on those that are left.
    pub goes_on: bool,
    /// `None`: late workers are waited for.
    pub stragglers: Option<StragglerPolicy>,
}

/// Sums of floats are completed without those who are late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StragglerPolicy {
    /// Age of a sum's first contribution, microseconds.
    pub after_us: u64,
    /// Of the workers that are left.
    pub share_min_percent: u8,
    /// Who is late is not waited for in the rest of the collective.
    pub rest_of_collective: bool,
}

impl Absences {
    /// As it is asked for.
    pub fn to_proto(self) -> proto::Absences {
        proto::Absences { goes_on: self.goes_on, stragglers: self.stragglers.map(|policy| policy.to_proto()) }
    }

    /// As it was asked for. A policy that makes no sense is none.
    pub(super) fn from_proto(absences: &proto::Absences) -> Absences {
        let stragglers = absences.stragglers.as_ref().and_then(StragglerPolicy::from_proto);
        Absences { goes_on: absences.goes_on, stragglers }
    }
}

impl StragglerPolicy {
    /// As servers are told.
    pub fn to_proto(self) -> proto::Stragglers {
        proto::Stragglers {
            after_us: self.after_us,
            share_min_percent: self.share_min_percent.into(),
            rest_of_collective: self.rest_of_collective,
        }
    }

    /// As it was told; `None` for what makes no sense.
    pub fn from_proto(policy: &proto::Stragglers) -> Option<StragglerPolicy> {
        let share_min_percent = u8::try_from(policy.share_min_percent).ok().filter(|&share| share <= 100)?;
        let after_us = Some(policy.after_us).filter(|&after| after <= AFTER_US_MAX)?;
        Some(StragglerPolicy { after_us, share_min_percent, rest_of_collective: policy.rest_of_collective })
    }
}
