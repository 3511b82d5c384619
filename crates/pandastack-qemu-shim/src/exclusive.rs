//! Static memory that exactly one thread uses.

use core::cell::UnsafeCell;

/// A static that only the control thread touches, and in a child its single thread before the
/// others are recreated. It replaces the heap and large stack frames, neither of which may be used
/// while threads are parked.
pub(crate) struct Exclusive<T>(UnsafeCell<T>);

// SAFETY: only one thread calls `get`, as its contract requires.
unsafe impl<T> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    /// The value at load time.
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// The value.
    ///
    /// # Safety
    /// Only from the control thread, and never while an earlier borrow of the same static is alive.
    #[expect(clippy::mut_from_ref, reason = "the contract makes the borrow unique")]
    pub(crate) unsafe fn get(&self) -> &mut T {
        // SAFETY: the caller holds the only borrow.
        unsafe { &mut *self.0.get() }
    }
}
