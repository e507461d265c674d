//! Checks of index data, which only a run knows: token ids, KV slots, positions, block tables.
//!
//! A backend makes them before an operation writes anything and reports the message as
//! [`crate::DeviceError::Kernel`], so that the same fault reads the same on every device. They allocate only
//! to fail.

use crate::{Attention, StateDecl};

/// [`crate::Op::GetRows`]: every id names a row of the table.
pub fn row_ids(ids: &[i32], rows: usize) -> Result<(), String> {
    match first(ids, |id| !below(id, rows)) {
        Some((i, id)) => Err(format!("id {id} (element {i}) is outside a table of {rows} rows")),
        None => Ok(()),
    }
}

/// [`crate::Op::Rope`]: no position is negative.
pub fn positions(positions: &[i32]) -> Result<(), String> {
    match first(positions, |p| p < 0) {
        Some((i, p)) => Err(format!("position {p} (token {i}) is negative")),
        None => Ok(()),
    }
}

/// [`crate::Op::KvStore`]: every slot is one of the cache's.
pub fn slots(slots: &[i32], state: &StateDecl) -> Result<(), String> {
    match first(slots, |s| !below(s, state.slots)) {
        Some((i, s)) => Err(format!("slot {s} (token {i}) is outside a KV cache of {} slots", state.slots)),
        None => Ok(()),
    }
}

/// [`crate::Op::Attention`]: every sequence has a row in the block table, every position a page in that row,
/// and every page that a token reads is one of the cache's. Entries that no token reads may be anything.
pub fn attention(
    attention: &Attention,
    positions: &[i32],
    sequences: &[i32],
    block_table: &[i32],
    blocks: usize,
    state: &StateDecl,
) -> Result<(), String> {
    let rows = block_table.len().checked_div(blocks).unwrap_or(0);
    let pages = state.slots / state.page;
    self::positions(positions)?;
    if let Some((i, s)) = first(sequences, |s| !below(s, rows)) {
        return Err(format!("sequence {s} (token {i}) is outside a block table of {rows} rows"));
    }
    for (i, (&p, &s)) in positions.iter().zip(sequences).enumerate() {
        let (last, row) = (p as usize / state.page, s as usize);
        if last >= blocks {
            return Err(format!(
                "position {p} (token {i}) is outside a block table of {blocks} pages of {}",
                state.page
            ));
        }
        let read = attention.first_position(p as usize) / state.page..=last;
        let entries = &block_table[row * blocks..][read.clone()];
        if let Some((at, page)) = first(entries, |page| !below(page, pages)) {
            let block = read.start() + at;
            return Err(format!(
                "page {page} (block {block} of sequence {s}) is outside a KV cache of {pages} pages"
            ));
        }
    }
    Ok(())
}

fn below(value: i32, limit: usize) -> bool {
    usize::try_from(value).is_ok_and(|v| v < limit)
}

fn first(values: &[i32], wrong: impl Fn(i32) -> bool) -> Option<(usize, i32)> {
    values.iter().copied().enumerate().find(|&(_, v)| wrong(v))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    const STATE: StateDecl =
        StateDecl { layer: 0, dtype: DType::F32, slots: 12, page: 4, kv_heads: 1, head_dim: 2 };
    const FULL: Attention = Attention { scale: 1.0, window: None, softcap: None };

    #[test]
    fn inv07_each_bound_is_exact_and_names_the_value() {
        assert_eq!(row_ids(&[0, 4], 5), Ok(()));
        assert_eq!(row_ids(&[0, 5], 5).unwrap_err(), "id 5 (element 1) is outside a table of 5 rows");
        assert_eq!(row_ids(&[-1], 5).unwrap_err(), "id -1 (element 0) is outside a table of 5 rows");
        assert_eq!(slots(&[11], &STATE), Ok(()));
        let beyond = slots(&[3, 12], &STATE).unwrap_err();
        assert_eq!(beyond, "slot 12 (token 1) is outside a KV cache of 12 slots");
        assert_eq!(positions(&[0, -3]).unwrap_err(), "position -3 (token 1) is negative");
    }

    #[test]
    fn inv07_attention_checks_only_the_pages_it_reads() {
        // Two sequences of two blocks; the second one's last block is not allocated.
        let table = [2, 0, 1, -1];
        let check = |a: &Attention, p: &[i32], s: &[i32]| attention(a, p, s, &table, 2, &STATE);
        assert_eq!(check(&FULL, &[7, 3], &[0, 1]), Ok(()));
        let error = check(&FULL, &[7, 4], &[0, 1]).unwrap_err();
        assert_eq!(error, "page -1 (block 1 of sequence 1) is outside a KV cache of 3 pages");
        let error = check(&FULL, &[8], &[0]).unwrap_err();
        assert_eq!(error, "position 8 (token 0) is outside a block table of 2 pages of 4");
        let error = check(&FULL, &[0], &[2]).unwrap_err();
        assert_eq!(error, "sequence 2 (token 0) is outside a block table of 2 rows");
        assert_eq!(check(&FULL, &[-1], &[0]).unwrap_err(), "position -1 (token 0) is negative");
        // A window that lies in the second block does not read the first.
        let windowed = Attention { window: Some(2), ..FULL };
        let table = [-1, 2];
        assert_eq!(attention(&windowed, &[5], &[0], &table, 2, &STATE), Ok(()));
        assert!(attention(&windowed, &[4], &[0], &table, 2, &STATE).is_err());
    }
}
