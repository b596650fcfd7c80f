//! The metrics of a formula in the reports of a pool's targets: a target's report in, its row of values out.
//!
//! Which column of a report feeds which metric is looked up once for each make of report, two sets of
//! metric names, and shared by all targets whose reports are of that make. A service's metric hides the
//! machine's of the same name; what is not a finite number is not reported.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::fleet::{Machine, Offered};
use crate::policy::FormulaGuest;
use crate::policy::guest::MetricUse;
use crate::report::MetricNames;

/// Makes of reports remembered for sharing.
const MAKES_MAX: usize = 64;

/// What a formula wants of a report.
#[derive(Default)]
pub(super) struct Inputs {
    wanted: Vec<Wanted>,
    /// Newest first.
    makes: VecDeque<Arc<Columns>>,
}

/// A metric the formula wants.
struct Wanted {
    name: Arc<str>,
    fallback: Option<f64>,
}

/// Where reports of one make hold the metrics.
pub(super) struct Columns {
    machine_names: MetricNames,
    service_names: MetricNames,
    /// One for each metric that is wanted.
    places: Vec<Place>,
}

#[derive(Clone, Copy)]
enum Place {
    Machine(usize),
    Service(usize),
    Nowhere,
}

impl Inputs {
    /// Those of a configured formula.
    pub(super) fn of(guest: &FormulaGuest) -> Self {
        let wanted = |metric: &MetricUse| Wanted {
            name: metric.name.as_str().into(),
            fallback: metric.fallback,
        };
        let wanted = guest.metrics().iter().map(wanted).collect();
        Self { wanted, makes: VecDeque::new() }
    }

    /// How many metrics are wanted.
    pub(super) fn len(&self) -> usize {
        self.wanted.len()
    }

    /// Appends a target's values; those of the metrics that it lacks, which are returned, are left out.
    /// `columns` is kept with the target from one report to the next.
    pub(super) fn read(
        &mut self,
        columns: &mut Option<Arc<Columns>>,
        machine: &Machine,
        service: &Offered,
        values: &mut Vec<f64>,
    ) -> Vec<Arc<str>> {
        let known = columns.take().filter(|known| known.are_of(machine, service));
        let known = columns.insert(known.unwrap_or_else(|| self.find(machine, service)));
        let mut missing = Vec::new();
        for (place, wanted) in known.places.iter().zip(&self.wanted) {
            let reported = match *place {
                Place::Machine(column) => machine.metrics.values.get(column),
                Place::Service(column) => service.metrics.values.get(column),
                Place::Nowhere => None,
            };
            let reported = reported.copied().filter(|value| value.is_finite());
            match reported.or(wanted.fallback) {
                Some(value) => values.push(value),
                None => missing.push(Arc::clone(&wanted.name)),
            }
        }
        missing
    }

    fn find(&mut self, machine: &Machine, service: &Offered) -> Arc<Columns> {
        if let Some(known) = self.makes.iter().find(|known| known.are_of(machine, service)) {
            return Arc::clone(known);
        }
        let new = Arc::new(Columns::new(machine, service, &self.wanted));
        self.makes.truncate(MAKES_MAX - 1);
        self.makes.push_front(Arc::clone(&new));
        new
    }
}

impl Columns {
    fn new(machine: &Machine, service: &Offered, wanted: &[Wanted]) -> Self {
        let (of_machine, of_service) = (&machine.metrics.names, &service.metrics.names);
        let column = |names: &MetricNames, name: &str| names.iter().position(|n| **n == *name);
        let place = |wanted: &Wanted| {
            let in_service = column(of_service, &wanted.name).map(Place::Service);
            let in_machine = || column(of_machine, &wanted.name).map(Place::Machine);
            in_service.or_else(in_machine).unwrap_or(Place::Nowhere)
        };
        Self {
            machine_names: Arc::clone(of_machine),
            service_names: Arc::clone(of_service),
            places: wanted.iter().map(place).collect(),
        }
    }

    fn are_of(&self, machine: &Machine, service: &Offered) -> bool {
        Arc::ptr_eq(&self.machine_names, &machine.metrics.names)
            && Arc::ptr_eq(&self.service_names, &service.metrics.names)
    }
}
