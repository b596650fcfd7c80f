//! The pool's targets as a candidate is told of them.
//!
//! A target's view is the live one but for its picks: the candidate has made the picks that it was asked
//! about, the live pool all others. So `picks` is the live count, with what the candidate chose and the
//! pool did not, and without what the pool chose and the candidate did not, as long as no report knows
//! of it; and the candidate counts its own as it would if it served. With a formula in shadow `load` is
//! that formula's, too. Leases, outcomes and ejections are those of the live picks. Pure: no lock, no
//! guest, no clock.

use crate::pick::usage::Picks;
use crate::policy::guest::TargetView;

/// One target.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// As the live strategy knows it.
    pub(super) live: TargetView,
    pub(super) captured_ms: u64,
    /// Picks of the candidate alone, since the capture.
    more: Picks,
    /// Picks of the live pool alone.
    less: Picks,
    /// The candidate formula's last good load; NaN: none yet.
    pub(super) load: f64,
    /// Hand-outs of the picks that were compared: live, and the candidate's.
    pub(super) handed: [u64; 2],
    /// The candidate knows of it; what it knows is not this any more.
    is_told: bool,
    is_dirty: bool,
    /// A formula has not seen its report.
    is_due: bool,
}

/// All targets by slot.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    targets: Vec<Option<Target>>,
    /// Slots of which the candidate is to be told, and those that are gone.
    dirty: Vec<u32>,
    left: Vec<u32>,
    /// With loads of its own.
    pub(super) has_loads: bool,
    /// Reports that a formula has not seen, by slot.
    due: Vec<u32>,
}

impl Target {
    /// As the candidate knows it.
    fn view(&self, has_loads: bool, now_ms: u64) -> TargetView {
        let picks = self.live.picks.saturating_add(self.more.total());
        let age_ms = now_ms.saturating_sub(self.captured_ms);
        TargetView {
            load: if has_loads { self.load } else { self.live.load },
            picks: picks.saturating_sub(self.less.total()),
            age_ms: u32::try_from(age_ms).unwrap_or(u32::MAX),
            ..self.live
        }
    }
}

impl Mirror {
    /// No targets yet; with loads of its own for a formula in shadow.
    pub(super) fn new(has_loads: bool) -> Self {
        Self { has_loads, ..Self::default() }
    }

    /// The live strategy is told of a target.
    pub(super) fn told(&mut self, live: TargetView, now_ms: u64) {
        let place = live.slot as usize;
        if self.targets.len() <= place {
            self.targets.resize_with(place + 1, || None);
        }
        let captured_ms = now_ms.saturating_sub(live.age_ms.into());
        let is_known = |known: &&mut Target| known.live.identity == live.identity;
        let mut is_report = true;
        match self.targets[place].as_mut().filter(is_known) {
            Some(known) => {
                is_report = known.captured_ms != captured_ms;
                (known.live, known.captured_ms) = (live, captured_ms);
                known.more.forget_before(captured_ms);
                known.less.forget_before(captured_ms);
            }
            None => {
                self.left(live.slot);
                self.targets[place] = Some(Target {
                    live,
                    captured_ms,
                    more: Picks::default(),
                    less: Picks::default(),
                    load: f64::NAN,
                    handed: [0, 0],
                    is_told: false,
                    is_dirty: false,
                    is_due: false,
                });
            }
        }
        self.soil(live.slot);
        if is_report {
            self.owe(live.slot);
        }
    }

    /// The target of a slot is gone.
    pub(super) fn left(&mut self, slot: u32) {
        let gone = self.targets.get_mut(slot as usize).and_then(Option::take);
        self.left.extend(gone.filter(|target| target.is_told).map(|_| slot));
    }

    /// All are gone.
    pub(super) fn clear(&mut self) {
        for slot in 0..u32::try_from(self.targets.len()).unwrap_or(u32::MAX) {
            self.left(slot);
        }
    }

    /// The live pool picked, and the candidate is not asked.
    pub(super) fn picked(&mut self, slot: u32) {
        if let Some(target) = self.get_mut(slot) {
            target.live.picks = target.live.picks.saturating_add(1);
            self.soil(slot);
        }
    }

    /// Both picked; who did what is in the candidate's view and in its own count.
    pub(super) fn picked_both(&mut self, live: u32, candidate: u32, now_ms: u64) {
        for (who, slot) in [live, candidate].into_iter().enumerate() {
            let Some(target) = self.get_mut(slot) else { continue };
            target.handed[who] += 1;
            if who == 0 {
                target.live.picks = target.live.picks.saturating_add(1);
            }
            if live != candidate {
                let apart = if who == 0 { &mut target.less } else { &mut target.more };
                apart.count(now_ms);
            }
        }
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Target> {
        self.targets.get(slot as usize)?.as_ref()
    }

    /// As the candidate knows it now.
    pub(super) fn view(&self, slot: u32, now_ms: u64) -> Option<TargetView> {
        Some(self.get(slot)?.view(self.has_loads, now_ms))
    }

    pub(super) fn targets(&self) -> impl Iterator<Item = (u32, &Target)> {
        (0..).zip(&self.targets).filter_map(|(slot, target)| Some((slot, target.as_ref()?)))
    }

    /// Nobody has heard anything: of a guest that was started anew.
    pub(super) fn forget_told(&mut self) {
        self.left.clear();
        let known: Vec<_> = self.targets().map(|(slot, _)| slot).collect();
        self.targets.iter_mut().flatten().for_each(|target| target.is_told = false);
        for slot in known {
            self.soil(slot);
            self.owe(slot);
        }
    }

    /// Slots that are gone since the last time.
    pub(super) fn take_left(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.left)
    }

    /// Slots with a report that a formula has not seen.
    pub(super) fn take_due(&mut self) -> Vec<u32> {
        let due = std::mem::take(&mut self.due);
        due.into_iter()
            .filter(|slot| self.get_mut(*slot).is_some_and(|of| std::mem::take(&mut of.is_due)))
            .collect()
    }

    /// A formula's load of a target, infinite where a metric is missing; a bad one leaves the last good one.
    pub(super) fn loaded(&mut self, slot: u32, load: f64) {
        if let Some(target) = self.get_mut(slot) {
            target.load = load;
            self.soil(slot);
        }
    }

    /// What the candidate is to be told.
    pub(super) fn take_dirty(&mut self, now_ms: u64) -> Vec<TargetView> {
        let slots = std::mem::take(&mut self.dirty);
        let has_loads = self.has_loads;
        let view = |slot: u32| {
            let target = self.get_mut(slot)?;
            target.is_told = true;
            std::mem::take(&mut target.is_dirty).then(|| target.view(has_loads, now_ms))
        };
        slots.into_iter().filter_map(view).collect()
    }

    pub(super) fn has_news(&self) -> bool {
        !(self.dirty.is_empty() && self.left.is_empty())
    }

    fn get_mut(&mut self, slot: u32) -> Option<&mut Target> {
        self.targets.get_mut(slot as usize)?.as_mut()
    }

    fn soil(&mut self, slot: u32) {
        let is_new = |target: &mut Target| !std::mem::replace(&mut target.is_dirty, true);
        if self.get_mut(slot).is_some_and(is_new) {
            self.dirty.push(slot);
        }
    }

    fn owe(&mut self, slot: u32) {
        let is_new = |target: &mut Target| !std::mem::replace(&mut target.is_due, true);
        if self.has_loads && self.get_mut(slot).is_some_and(is_new) {
            self.due.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(slots: u32) -> Mirror {
        let mut mirror = Mirror::default();
        (0..slots).for_each(|slot| mirror.told(TargetView::new(slot, 0.5), 100));
        mirror.take_dirty(100);
        mirror
    }

    fn picks(mirror: &Mirror) -> Vec<u32> {
        mirror.targets().filter_map(|(slot, _)| Some(mirror.view(slot, 100)?.picks)).collect()
    }

    #[test]
    fn the_candidate_has_made_its_own_picks_and_the_pool_all_others() {
        let mut mirror = mirror(3);
        mirror.picked_both(0, 0, 110);
        mirror.picked_both(0, 1, 120);
        assert_eq!(picks(&mirror), [1, 1, 0], "as the candidate counts them");
        assert!(!mirror.has_news(), "which it does by itself");
        mirror.picked(2);
        assert_eq!(picks(&mirror), [1, 1, 1]);
        let told: Vec<_> = mirror.take_dirty(130).iter().map(|view| view.slot).collect();
        assert_eq!(told, [2], "it is told of what it was not asked about");
        // The live table tells its own count; the difference stays until a report knows of it.
        let live = |slot, picks, age_ms| TargetView { picks, age_ms, ..TargetView::new(slot, 0.5) };
        mirror.told(live(0, 2, 40), 140);
        mirror.told(live(1, 0, 40), 140);
        assert_eq!(picks(&mirror), [1, 1, 1]);
        mirror.told(live(0, 0, 10), 140);
        mirror.told(live(1, 0, 10), 140);
        assert_eq!(picks(&mirror), [0, 0, 1], "captured after the picks");
        assert_eq!(
            mirror.targets().map(|(_, of)| of.handed).collect::<Vec<_>>(),
            [[2, 1], [0, 1], [0, 0]]
        );
    }

    #[test]
    fn another_target_in_a_slot_is_told_as_one_that_left_and_one_that_came() {
        let mut mirror = mirror(2);
        mirror.picked_both(0, 0, 110);
        mirror.told(TargetView { identity: 77, ..TargetView::new(0, 0.1) }, 120);
        assert_eq!(mirror.take_left(), [0]);
        assert_eq!(mirror.take_dirty(120).len(), 1);
        assert_eq!(mirror.get(0).map(|target| target.handed), Some([0, 0]));
        mirror.clear();
        assert_eq!((mirror.take_left(), mirror.targets().count()), (vec![0, 1], 0));
    }
}
