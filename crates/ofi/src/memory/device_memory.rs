//! Registration of device memory that NICs reach by themselves.
//!
//! A region is registered on every rail in use, or on none: a peer's put takes any of them, and the
//! handle has a key for each. What stands in the way, or what libfabric has answered in each way
//! tried, is kept for every rail: who stages the memory instead can say why.

use std::fmt;
use std::io;
use std::sync::atomic::Ordering;
use std::thread;

use log::{info, warn};

use crate::memory::direct_policy::DeviceMemory;
use crate::memory::registration::{OfiMemory, OfiRegion, Registrar};
use crate::objects::memory_region::{Region, Rights, Way};
use crate::options::GpuDirect;
use engine::port::{Access, PortError, Registered};

/// Why NICs do not reach a range by themselves: every way and every rail that was tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectRefusal {
    /// One line each, with the rail's name where it is about a rail.
    pub reasons: Vec<String>,
    /// Whether the user has ruled out to stage it (`NVSHMEM_LIBFABRIC_GPU_DIRECT=always`).
    pub is_error: bool,
    /// Whether NICs set up for it could: they are slower so, and nobody has asked for that.
    pub is_slow: bool,
}

impl fmt::Display for DirectRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reasons.join("; "))
    }
}

impl std::error::Error for DirectRefusal {}

fn first_of<T>(
    ways: &[Way],
    mut register: impl FnMut(Way) -> Result<T, PortError>,
) -> Result<(Way, T), Vec<String>> {
    let mut refusals = Vec::new();
    for &way in ways {
        match register(way) {
            Ok(region) => return Ok((way, region)),
            Err(error) => refusals.push(format!("{way}: {error}")),
        }
    }
    Err(refusals)
}

impl OfiMemory {
    /// Registers device memory on all rails, so that their NICs reach it by themselves. Rails are
    /// asked side by side: each may take long.
    ///
    /// The memory is such as [`OfiRegion`] asks for. Where the NICs write to it, CUDA's own copies
    /// to it are to be made synchronous first (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`).
    ///
    /// # Errors
    /// Everything that stands in the way. No registration is left then.
    pub fn register_device(
        &self,
        memory: &DeviceMemory<'_>,
        access: Access,
    ) -> Result<Registered<OfiRegion>, DirectRefusal> {
        let refuse = |reasons| {
            let is_slow = !self.direct.takes.is_empty() && self.direct.choice == GpuDirect::Auto;
            Err(DirectRefusal { is_slow, ..self.refuse_direct(reasons) })
        };
        if self.direct.choice == GpuDirect::Never {
            return refuse(vec![String::from("NVSHMEM_LIBFABRIC_GPU_DIRECT=never")]);
        }
        // The host lane's rail is on the device of the first one of the proxy lane.
        let proxy = self.proxy.iter().map(|rail| (rail, Rights::of(access)));
        let host = self.host.iter().map(|rail| (rail, Rights::None));
        let rails: Vec<(&Registrar, Rights)> = proxy.chain(host).collect();

        let obstacle = |(rail, _): &(&Registrar, Rights)| {
            let reason = self.direct.obstacle(&rail.traits, memory)?;
            Some(format!("rail {}: {reason}", rail.name))
        };
        let mut obstacles: Vec<String> = rails.iter().filter_map(obstacle).collect();
        if !obstacles.is_empty() {
            obstacles.dedup();
            return refuse(obstacles);
        }

        let (ways, missing) = self.direct.ways(memory);
        let register = |(rail, rights): (&Registrar, Rights)| {
            let mut outcome = Err(vec![String::from("the memory's CUDA context cannot be bound")]);
            (memory.with_context)(&mut || {
                outcome =
                    first_of(&ways, |way| rail.register_as(memory.addr, memory.len, rights, way));
            });
            outcome
        };
        let outcomes = side_by_side(&rails, &register);

        let (mut regions, mut reasons) = (Vec::with_capacity(rails.len()), Vec::new());
        let mut taken = None;
        for ((rail, _), outcome) in rails.iter().zip(outcomes) {
            match outcome {
                Ok((way, region)) => {
                    regions.push(region);
                    taken.get_or_insert(way);
                }
                Err(refusals) => {
                    reasons
                        .extend(refusals.iter().map(|said| format!("rail {}: {said}", rail.name)));
                }
            }
        }
        if !reasons.is_empty() {
            reasons.extend(missing);
            reasons.dedup();
            reasons.extend(Some(self.direct.takes.to_owned()).filter(|takes| !takes.is_empty()));
            return refuse(reasons);
        }
        self.say(memory, taken, missing.as_deref());
        self.has_direct.store(true, Ordering::Release);
        // Providers whose rails have connections for bulk reach host memory alone.
        Ok(self.registered(regions, Vec::new()))
    }

    /// A refusal for reasons that the caller has found.
    pub fn refuse_direct(&self, reasons: Vec<String>) -> DirectRefusal {
        let is_error = self.direct.choice == GpuDirect::Always;
        DirectRefusal { reasons, is_error, is_slow: false }
    }

    /// Whether a dma-buf would be of use to [`OfiMemory::register_device`].
    pub fn takes_dma_bufs(&self) -> bool {
        self.direct.choice != GpuDirect::Never
            && self.direct.dma_bufs
            && self.proxy.iter().all(|rail| rail.traits.reaches_devices)
    }

    fn say(&self, memory: &DeviceMemory<'_>, taken: Option<Way>, missing: Option<&str>) {
        let first = taken.map_or_else(String::new, |way| way.to_string());
        let missing = missing.map_or_else(String::new, |missing| format!(" ({missing})"));
        let count = self.proxy.len();
        info!("{memory:?}: registered with {count} rail(s) by {first}{missing}");
        for rail in &self.proxy {
            if let Some(said) = &rail.traits.needs_cuda {
                warn!(
                    "rail {}: some transfers from device memory call CUDA, and may wait for running \
                     kernels ({said})",
                    rail.name
                );
            }
        }
    }
}

type Outcome = Result<(Way, Region), Vec<String>>;

/// Registers on each rail in a thread of its own, the last one, or what gets no thread, here.
fn side_by_side<R: Copy + Send>(
    rails: &[R],
    register: &(dyn Fn(R) -> Outcome + Sync),
) -> Vec<Outcome> {
    thread::scope(|scope| {
        let start = |rail: R| -> io::Result<_> {
            let builder = thread::Builder::new().name(String::from("nvshmem-ofi-register"));
            builder.spawn_scoped(scope, move || register(rail))
        };
        let Some((&last, others)) = rails.split_last() else { return Vec::new() };
        let started: Vec<_> = others.iter().map(|rail| (*rail, start(*rail))).collect();
        let last = register(last);
        let ended =
            started.into_iter().map(|(rail, thread)| match thread.map(|thread| thread.join()) {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => Err(vec![String::from("registering it has panicked")]),
                Err(_) => register(rail),
            });
        ended.chain([last]).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn error(text: &str) -> PortError {
        PortError { call: "fi_mr_regattr", code: 14, text: String::from(text) }
    }

    #[test]
    fn methods_are_tried_until_one_works() {
        let ways = [Way::DmaBuf { device: 0, fd: 3, offset: 0 }, Way::Cuda { device: 0 }];
        let mut tried = Vec::new();
        let taken = first_of(&ways, |way| {
            tried.push(way);
            if way == ways[0] { Err(error("no peer memory")) } else { Ok(7) }
        });
        assert_eq!((taken, tried.as_slice()), (Ok((ways[1], 7)), &ways[..]));
        let taken = first_of(&ways, |_| Ok(1));
        assert_eq!(taken, Ok((ways[0], 1)), "no second one where the first is taken");
        let refused = first_of::<()>(&ways, |way| Err(error(&format!("not {way}")))).unwrap_err();
        assert_eq!(
            refused,
            [
                "dma-buf: fi_mr_regattr failed: not dma-buf (error 14)",
                "FI_HMEM_CUDA: fi_mr_regattr failed: not FI_HMEM_CUDA (error 14)",
            ]
        );
    }

    #[test]
    fn rails_register_concurrently_in_order() {
        // All of them are inside at a time, or none would come out.
        let inside = Barrier::new(4);
        let calls = AtomicUsize::new(0);
        let answers = side_by_side(&[0, 1, 2, 3], &|rail: usize| {
            calls.fetch_add(1, Ordering::Relaxed);
            inside.wait();
            Err(vec![rail.to_string()])
        });
        let said: Vec<String> =
            answers.into_iter().flat_map(|answer| answer.unwrap_err()).collect();
        assert_eq!(said, ["0", "1", "2", "3"]);
        assert_eq!(calls.into_inner(), 4);
        let answers = side_by_side(&[0, 1], &|rail: usize| {
            assert_ne!(rail, 0, "this thread panics, and no other");
            Err(vec![String::from("refused")])
        });
        let said: Vec<String> =
            answers.into_iter().flat_map(|answer| answer.unwrap_err()).collect();
        assert_eq!(said, ["registering it has panicked", "refused"]);
    }
}
