//! The connections of a server: a bounded number of places, and who has been quiet for longest.
//!
//! Quiet is who sends no whole request and reads no answer: bytes of a head that comes slowly are no
//! news. Invariant: whoever has a request that is being answered keeps its place.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// The places of a server.
#[derive(Debug)]
pub(super) struct Places {
    room: Arc<Semaphore>,
    taken: Mutex<HashMap<u64, Arc<Place>>>,
    next: AtomicU64,
    /// Counts what connections do.
    deeds: Arc<AtomicU64>,
}

/// What a connection does.
#[derive(Debug)]
pub(super) struct Place {
    answering: AtomicU32,
    /// The last thing it did, by the server's count.
    last: AtomicU64,
    deeds: Arc<AtomicU64>,
    task: OnceLock<AbortHandle>,
}

/// A place that is taken, until dropped.
pub(super) struct Seat {
    id: u64,
    pub(super) place: Arc<Place>,
    places: Arc<Places>,
    _permit: OwnedSemaphorePermit,
}

/// Somebody is being answered, until dropped.
pub(super) struct Answering(Arc<Place>);

impl Places {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            room: Arc::new(Semaphore::new(limit)),
            taken: Mutex::default(),
            next: AtomicU64::new(0),
            deeds: Arc::default(),
        })
    }

    /// A place, if one is free.
    pub(super) fn try_take(self: &Arc<Self>) -> Option<Seat> {
        let permit = Arc::clone(&self.room).try_acquire_owned().ok()?;
        Some(self.seat(permit))
    }

    /// A place for one more: waits only where everybody is being answered.
    pub(super) async fn take(self: &Arc<Self>) -> Seat {
        self.make_room();
        let permit = Arc::clone(&self.room).acquire_owned().await;
        match permit {
            Ok(permit) => self.seat(permit),
            Err(_) => std::future::pending().await, // never closed
        }
    }

    fn seat(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Seat {
        let place = Arc::new(Place {
            answering: AtomicU32::new(0),
            last: AtomicU64::new(0),
            deeds: Arc::clone(&self.deeds),
            task: OnceLock::new(),
        });
        place.note();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(id, Arc::clone(&place));
        Seat { id, place, places: Arc::clone(self), _permit: permit }
    }

    /// Ends who has been quiet for longest.
    fn make_room(&self) {
        let mut taken = self.lock();
        let quiet = taken.iter().filter(|(_, place)| place.answering.load(Ordering::Relaxed) == 0);
        let quietest = quiet.min_by_key(|(_, place)| place.last.load(Ordering::Relaxed));
        let quietest = quietest.map(|(id, _)| *id);
        if let Some(place) = quietest.and_then(|id| taken.remove(&id))
            && let Some(task) = place.task.get()
        {
            task.abort();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Place>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// It did something now.
    pub(super) fn note(&self) {
        self.last.store(self.deeds.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// A request has come whole enough to be answered.
    pub(super) fn answering(self: &Arc<Self>) -> Answering {
        self.answering.fetch_add(1, Ordering::Relaxed);
        Answering(Arc::clone(self))
    }
}

impl Seat {
    /// Which task sits here: it is ended when the place is needed.
    pub(super) fn is_of(place: &Place, task: AbortHandle) {
        place.task.get_or_init(|| task);
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.note();
        self.0.answering.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.places.lock().remove(&self.id);
    }
}
