//! EFA NICs that are not there: `libibverbs.so.1` and `libefa.so.1` for libfabric's own efa
//! provider.
//!
//! The provider's code runs as it is shipped; what it would ask of the kernel and of a NIC, it asks
//! of this library. One file has both names, as two links in a directory of `LD_LIBRARY_PATH`: the
//! loader knows a file that it has already, so both are one library with one state. It has no
//! symbol versions; the loader asks for none where a library has none at all.
//!
//! A job is a directory. Each NIC is a file in it, which every process of the job maps: its queue
//! pairs, the addresses it knows, and its memory regions with the process that each belongs to. The
//! NIC that sends does all the work: it finds the region or the receive at the target and reads or
//! writes that process's memory (`process_vm_readv`, `process_vm_writev`). So targets are passive,
//! as with a real NIC: data arrives while they compute or sleep. Work is done when a queue is
//! polled, and by a thread of the device for those who do not poll.
//!
//! What SRD leaves open is drawn by a seed: packets of an operation, and of different ones, arrive
//! in any order within a window; completions come in any order. What it forbids is held against the
//! caller:
//!
//! - A full send or receive queue refuses with `ENOMEM`, and a refused post takes with it what was
//!   posted since the last doorbell.
//! - A local key that does not cover a buffer, a remote one that does not cover the address or
//!   lacks the right, a message longer than the MTU, a queue pair that is not there: an error
//!   completion with the device's status.
//! - RDMA from a NIC that the target has no address handle of is refused there.
//! - A message that finds no receive is tried again, and refused when the tries are over.
//! - A write with immediate data takes a receive, unless the queue pair was made for unsolicited
//!   ones.
//! - A dma-buf has to begin in a page as the address does that peers use.
//! - A completion queue that overruns ends the process, and so do two threads in one queue at once.
//!
//! Memory of devices is registered by dma-bufs of the CUDA driver's stand-in, and by nothing else.
//! What a NIC writes there may be seen later than its completion: `EFA_LAB_POSTED` writes of each
//! NIC stay unseen until that NIC reads memory of a device, or the driver is asked for a flush.
//!
//! # Environment
//! Read once, when devices are listed.
//!
//! | variable | default | |
//! |---|---|---|
//! | `EFA_LAB_DIR` | | the job's directory; without it there is no NIC |
//! | `EFA_LAB_PERSONA` | `p5` | the machine: `p4d`, `p5`, `p5en`, `p6` |
//! | `EFA_LAB_NICS` | all | show so many of its NICs |
//! | `EFA_LAB_HOST` | the process's number | processes with the same number share NICs, as on one host |
//! | `EFA_LAB_SEED` | 1 | of the order in which things happen |
//! | `EFA_LAB_POSTED` | 0 | so many writes of a NIC to memory of devices are not seen yet |
//! | `EFA_LAB_FAULTS` | | see `faults.rs` |
//!
//! `SYSFS_PATH` must be `EFA_LAB_DIR/sys`, which this library fills: the provider reads its NICs'
//! places there.

mod calls;
mod config;
mod device;
mod faults;
mod persona;
mod shared;
mod sysfs;
mod verbs;
