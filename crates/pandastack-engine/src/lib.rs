//! What a virtual machine engine can do, and the suite that proves it.
