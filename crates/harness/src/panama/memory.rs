//! What workers contribute, and what its sums must be.

use std::collections::HashMap;

use fanin_protocol::panama::Tensors;
use fanin_protocol::stream::BlockId;
use fanin_wire::panama::ElementFormat;

use super::JobPlan;

/// By job, collective and block: whom the sum holds, and its bytes. Everybody must take the same.
pub type Sums = HashMap<(u32, u64, u32), (u16, Vec<u8>)>;

/// One worker's tensors while a packet is handled.
pub struct Memory<'a> {
    pub job: &'a JobPlan,
    pub rank: u16,
    pub sums: &'a mut Sums,
    /// Blocks that this worker has taken.
    pub taken: &'a mut std::collections::HashSet<(u64, u32)>,
    pub wrong: Option<String>,
    /// Sums without everybody that were taken.
    pub in_part: u64,
}

/// 1, 2 or 3, a rank's digit of an element.
fn digit(job: &JobPlan, rank: u16, id: BlockId, element: usize) -> u32 {
    let seed = [job.job_id, rank.into(), id.collective as u32, id.block, element as u32];
    let noise = seed.into_iter().fold(0x9e37_79b9_7f4a_7c15u64, |state, word| {
        (state ^ u64::from(word)).wrapping_mul(0xd129_42f2_3c52_7b4d).rotate_left(29)
    });
    (noise >> 32) as u32 % 3 + 1
}

fn encode(value: f32, format: ElementFormat, out: &mut [u8]) {
    let slot = [value];
    match format {
        ElementFormat::Float32 => fanin_numeric::ieee::emit_f32(&slot, out),
        ElementFormat::Float16 => fanin_numeric::ieee::emit_f16(&slot, out),
        ElementFormat::Bfloat16 => fanin_numeric::ieee::emit_bf16(&slot, out),
    }
}

fn decode(bytes: &[u8], format: ElementFormat) -> f32 {
    let mut slot = [0.0];
    match format {
        ElementFormat::Float32 => fanin_numeric::ieee::overwrite_f32(bytes, &mut slot),
        ElementFormat::Float16 => fanin_numeric::ieee::overwrite_f16(bytes, &mut slot),
        ElementFormat::Bfloat16 => fanin_numeric::ieee::overwrite_bf16(bytes, &mut slot),
    }
    slot[0]
}

impl Tensors for Memory<'_> {
    fn write_block(&mut self, id: BlockId, format: ElementFormat, payload: &mut [u8]) {
        for (element, out) in payload.chunks_exact_mut(format.bytes()).enumerate() {
            let place = 4f32.powi(self.rank.into());
            encode(digit(self.job, self.rank, id, element) as f32 * place, format, out);
        }
    }

    fn read_block(&mut self, id: BlockId, format: ElementFormat, worker_count: u16, payload: &[u8]) {
        let outcome = self.check(id, format, worker_count, payload);
        self.wrong = self.wrong.take().or(outcome.err().map(|what| format!("{id:?}: {what}")));
    }
}

impl Memory<'_> {
    fn check(&mut self, id: BlockId, format: ElementFormat, worker_count: u16, payload: &[u8]) -> Result<(), String> {
        if !self.taken.insert((id.collective, id.block)) {
            return Err("taken twice".into());
        }
        let known = (worker_count, payload.to_vec());
        if *self.sums.entry((self.job.job_id, id.collective, id.block)).or_insert_with(|| known.clone()) != known {
            return Err("WRONG SUM: another one than somebody else has taken".into());
        }
        let all = self.job.hosts.len() as u16;
        self.in_part += u64::from(worker_count < all);
        if worker_count > all || worker_count < all && !self.job.is_partial {
            return Err(format!("WRONG SUM of {worker_count} workers, {all} expected"));
        }
        self.check_elements(id, format, worker_count, payload)
    }

    /// The digits show who is in the sum: everybody once, or those that are declared.
    fn check_elements(
        &self,
        id: BlockId,
        format: ElementFormat,
        worker_count: u16,
        payload: &[u8],
    ) -> Result<(), String> {
        let submission = &self.job.collectives[id.collective as usize];
        let sole = submission.contributors.sole(0);
        let expected = usize::from(submission.shape.elements_of(id.block).1) * format.bytes();
        if payload.len() != expected && !(sole.is_some() && self.job.is_partial && payload.is_empty()) {
            return Err(format!("WRONG SUM of {} bytes, {expected} expected", payload.len()));
        }
        let mut first = None;
        for (element, bytes) in payload.chunks_exact(format.bytes()).enumerate() {
            let sum = decode(bytes, format);
            let holders =
                self.holders(id, element, sum).ok_or_else(|| format!("WRONG SUM, element {element}: {sum}"))?;
            let awaited = if sole.is_some() { 1 } else { worker_count };
            if holders.count_ones() != u32::from(awaited) || first.is_some_and(|first| first != holders) {
                return Err(format!("WRONG SUM, element {element}: {sum} holds {holders:b}, {worker_count} declared"));
            }
            first = Some(holders);
        }
        Ok(())
    }

    /// Ranks whose digits a sum holds, a bit for each; nothing if some digit is nobody's.
    fn holders(&self, id: BlockId, element: usize, sum: f32) -> Option<u16> {
        if sum.fract() != 0.0 || !(0.0..4f32.powi(12)).contains(&sum) {
            return None;
        }
        let mut rest = sum as u32;
        let mut holders = 0;
        for rank in 0..self.job.hosts.len() as u16 {
            match rest % 4 {
                0 => {}
                found if found == digit(self.job, rank, id, element) => holders |= 1 << rank,
                _ => return None,
            }
            rest /= 4;
        }
        (rest == 0).then_some(holders)
    }
}
