//! Registration of device memory for direct access by NICs.
//!
//! A region is registered on every rail in use, or on none: a peer's put takes any of them, and the
//! handle has a key for each. The obstacles, or libfabric's answer to each method, are returned for
//! every rail, so that the log can say why the memory is staged instead.

use std::io;
use std::sync::atomic::Ordering;
use std::thread;

use log::{info, warn};
use thiserror::Error;

use crate::memory::direct_policy::DeviceMemory;
use crate::memory::registration::{OfiMemory, OfiRegion, Registrar};
use crate::objects::memory_region::{Method, Region, Rights};
use crate::options::GpuDirect;
use engine::port::{Access, PortError, Registered};

/// Reasons why NICs cannot access a range directly, for every method and rail that was tried.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{}", reasons.join("; "))]
pub struct DirectRefusal {
    /// One line each, with the rail's name if it is about a rail.
    pub reasons: Vec<String>,
    /// Whether the user has ruled out staging (`NVSHMEM_LIBFABRIC_GPU_DIRECT=always`).
    pub is_error: bool,
    /// Whether the NICs could if configured for it: staging is slower, and was not asked for.
    pub is_slow: bool,
}

fn first_of<T>(
    methods: &[Method],
    mut register: impl FnMut(Method) -> Result<T, PortError>,
) -> Result<(Method, T), Vec<String>> {
    let mut refusals = Vec::new();
    for &method in methods {
        match register(method) {
            Ok(region) => return Ok((method, region)),
            Err(error) => refusals.push(format!("{method}: {error}")),
        }
    }
    Err(refusals)
}

impl OfiMemory {
    /// Registers device memory on all rails for direct access by their NICs; concurrently, since
    /// each rail may take long.
    ///
    /// The memory must stay valid as [`OfiRegion`] demands. If NICs write to it, CUDA's own copies
    /// to it must be made synchronous first (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`).
    ///
    /// # Errors
    /// All obstacles. No registration is left then.
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
        // The host lane's rail is on the device of the proxy lane's first rail.
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

        let (methods, missing) = self.direct.methods(memory);
        let register = |(rail, rights): (&Registrar, Rights)| {
            let mut outcome = Err(vec![String::from("the memory's CUDA context cannot be bound")]);
            (memory.with_context)(&mut || {
                outcome = first_of(&methods, |method| {
                    rail.register_as(memory.addr, memory.len, rights, method)
                });
            });
            outcome
        };
        let outcomes = side_by_side(&rails, &register);

        let (mut regions, mut reasons) = (Vec::with_capacity(rails.len()), Vec::new());
        let mut taken = None;
        for ((rail, _), outcome) in rails.iter().zip(outcomes) {
            match outcome {
                Ok((method, region)) => {
                    regions.push(region);
                    taken.get_or_insert(method);
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
        // Providers with bulk connections reach only host memory.
        Ok(self.registered(regions, Vec::new()))
    }

    /// Returns a refusal for reasons that the caller has found.
    pub fn refuse_direct(&self, reasons: Vec<String>) -> DirectRefusal {
        let is_error = self.direct.choice == GpuDirect::Always;
        DirectRefusal { reasons, is_error, is_slow: false }
    }

    /// Returns true if [`OfiMemory::register_device`] can use a dma-buf.
    pub fn takes_dma_bufs(&self) -> bool {
        self.direct.choice != GpuDirect::Never
            && self.direct.dma_bufs
            && self.proxy.iter().all(|rail| rail.traits.reaches_devices)
    }

    fn say(&self, memory: &DeviceMemory<'_>, taken: Option<Method>, missing: Option<&str>) {
        let first = taken.map_or_else(String::new, |method| method.to_string());
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

type Outcome = Result<(Method, Region), Vec<String>>;

/// Registers on each rail in a thread of its own; on the last one, and where no thread starts, on
/// the calling thread.
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
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc, Barrier};

    use super::*;
    use crate::data_path::rail::Rail;
    use crate::data_path::rail::tests::open;
    use crate::memory::direct_policy::DirectPolicy;
    use crate::memory::direct_policy::tests::{memory, policy};
    use crate::objects::domain::tests::some_device;
    use crate::provider::Provider;
    use engine::port::{Addressing, MemoryPort};

    #[test]
    fn direct_memory_takes_willing_rails() {
        let with_context = &|_: &mut dyn FnMut()| panic!("it was tried all the same");
        let range = DeviceMemory { with_context, ..memory(Err("none")) };
        let rail = Arc::new(open(&some_device(Provider::Tcp, |_| {}), 4).expect("opened"));
        for (choice, takes, dma_bufs, is_slow) in [
            (GpuDirect::Never, "a driver", true, false),
            (GpuDirect::Auto, "a driver", true, true),
            (GpuDirect::Auto, "", false, false),
            (GpuDirect::Always, "a driver", true, false),
        ] {
            let with = |rails: &[Arc<Rail>]| {
                let (bulk, direct) =
                    (vec![Vec::new(); 1], DirectPolicy { takes, dma_bufs, ..policy(choice) });
                OfiMemory::new(&[], rails, bulk, Addressing::Virtual, direct)
            };
            let is_asked = choice != GpuDirect::Never;
            let (none, mut one) = (with(&[]), with(&[Arc::clone(&rail)]));
            assert_eq!(none.takes_dma_bufs(), is_asked && dma_bufs, "{choice:?}");
            assert!(!none.reaches_devices());
            let registered = none.register_device(&range, Access::LocalAndRemote).is_ok();
            assert_eq!((registered, none.reaches_devices()), (is_asked, is_asked));

            let refusal = one.register_device(&range, Access::Local).expect_err("no FI_HMEM");
            let asked = format!("rail {}: it was opened without FI_HMEM", rail.name);
            let never = "NVSHMEM_LIBFABRIC_GPU_DIRECT=never";
            let expected = if is_asked { &asked } else { never };
            assert_eq!(refusal.to_string(), expected, "libfabric would fault");
            let is_error = choice == GpuDirect::Always;
            assert_eq!((refusal.is_error, refusal.is_slow), (is_error, is_slow), "{choice:?}");
            assert!(!one.takes_dma_bufs() && !one.reaches_devices());
            one.proxy[0].traits.reaches_devices = true;
            assert_eq!(one.takes_dma_bufs(), is_asked && dma_bufs, "{choice:?}");
        }
        let (host, direct) = ([Arc::clone(&rail)], policy(GpuDirect::Auto));
        let both = OfiMemory::new(&host, &host, vec![Vec::new()], Addressing::Virtual, direct);
        let bytes = [0_u64; 8];
        let registered = both.register(bytes.as_ptr() as usize, 64, Access::LocalAndRemote);
        let mut region = registered.expect("host memory").owner;
        assert_eq!(both.close(&mut region), Ok(()));
        assert_eq!(format!("{region:?}").matches("closed: true").count(), 2, "of both lanes");
    }

    fn error(text: &str) -> PortError {
        PortError { call: "fi_mr_regattr", code: 14, text: String::from(text) }
    }

    #[test]
    fn methods_are_tried_until_one_works() {
        let methods = [Method::DmaBuf { device: 0, fd: 3, offset: 0 }, Method::Cuda { device: 0 }];
        let mut tried = Vec::new();
        let taken = first_of(&methods, |method| {
            tried.push(method);
            if method == methods[0] { Err(error("no peer memory")) } else { Ok(7) }
        });
        assert_eq!((taken, tried.as_slice()), (Ok((methods[1], 7)), &methods[..]));
        let taken = first_of(&methods, |_| Ok(1));
        assert_eq!(taken, Ok((methods[0], 1)), "no second one where the first is taken");
        let refused =
            first_of::<()>(&methods, |method| Err(error(&format!("not {method}")))).unwrap_err();
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
