//! Stream memory operations: stores of words, submitted to a stream by one call of the driver.

use std::fmt;

use cudarc::driver::sys::{
    CUdeviceptr, CUstreamBatchMemOpParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as WriteValue,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as WriteValueWord,
    CUstreamBatchMemOpType,
};

use crate::driver::error::{CudaError, code};
use crate::driver::stream::Stream;
use ::engine::atomic::Width;

/// Maximum number of words stored by one call.
pub(crate) const MAX_WRITES: usize = 64;

/// A checked store of a word of 4 or 8 bytes, in device memory or page-locked memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordWrite {
    pub(crate) addr: usize,
    pub(crate) width: Width,
    pub(crate) value: u64,
}

impl WordWrite {
    /// Submits the store to a stream, whose context must be bound.
    pub(crate) fn submit(&self, stream: &Stream) -> Result<(), CudaError> {
        let Self { addr, width, value } = *self;
        let context = stream.context();
        let driver = context.driver();
        let (device, raw) = (addr as CUdeviceptr, stream.raw());
        let missing = || driver.lacks("cuStreamWriteValue", context.to_string());
        let (call, status) = match width {
            Width::Eight => {
                let write = driver.api.cuStreamWriteValue64_v2.ok_or_else(missing)?;
                // SAFETY: an aligned word that the device reaches; the context is bound.
                ("cuStreamWriteValue64_v2", unsafe { write(raw, device, value, 0) })
            }
            _ => {
                let write = driver.api.cuStreamWriteValue32_v2.ok_or_else(missing)?;
                // SAFETY: as above.
                ("cuStreamWriteValue32_v2", unsafe { write(raw, device, value as u32, 0) })
            }
        };
        driver.check(call, status, || format!("the word at {addr:#x} of {context}"))
    }

    fn operation(&self) -> CUstreamBatchMemOpParams {
        let operation = match self.width {
            Width::Eight => CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64,
            _ => CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32,
        };
        let write = WriteValue {
            operation,
            address: self.addr as CUdeviceptr,
            // The driver reads the low half for a word of four bytes: the machine is little-endian.
            __bindgen_anon_1: WriteValueWord { value64: self.value },
            flags: 0,
            alias: 0,
        };
        CUstreamBatchMemOpParams { writeValue: write }
    }
}

/// Queued stores, and the arguments of the call that takes several; empty if the driver has none.
pub(crate) struct WordWrites {
    queued: Vec<WordWrite>,
    operations: Box<[CUstreamBatchMemOpParams]>,
}

impl WordWrites {
    pub(crate) fn new() -> Self {
        let operations = (0..=MAX_WRITES).map(|_| CUstreamBatchMemOpParams { pad: [0; 6] });
        Self { queued: Vec::with_capacity(MAX_WRITES), operations: operations.collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.queued.len()
    }

    pub(crate) fn clear(&mut self) {
        self.queued.clear();
    }

    pub(crate) fn push(&mut self, write: WordWrite) {
        self.queued.push(write);
    }

    /// Submits the queued stores in order: by one call that also writes `counter` after them, or
    /// one by one without it. Returns whether the counter was included. Sets `any` once a store is
    /// submitted. The context must be bound.
    pub(crate) fn submit(
        &mut self,
        stream: &Stream,
        counter: Option<WordWrite>,
        any: &mut bool,
    ) -> Result<bool, CudaError> {
        match self.submit_as_one(stream, counter) {
            Some(Ok(())) => {
                *any = true;
                self.clear();
                return Ok(counter.is_some());
            }
            // Some drivers have the function and refuse it.
            Some(Err(error)) if error.code == code::NOT_SUPPORTED => {
                self.operations = Box::default();
            }
            Some(Err(error)) => return Err(error),
            None => {}
        }
        for write in self.queued.drain(..) {
            write.submit(stream)?;
            *any = true;
        }
        Ok(false)
    }

    fn submit_as_one(
        &mut self,
        stream: &Stream,
        counter: Option<WordWrite>,
    ) -> Option<Result<(), CudaError>> {
        const CALL: &str = "cuStreamBatchMemOp_v2";
        let Self { queued, operations } = self;
        let context = stream.context();
        let driver = context.driver();
        let call = driver.api.cuStreamBatchMemOp_v2.filter(|_| !operations.is_empty())?;
        let mut count = 0;
        for (operation, write) in operations.iter_mut().zip(queued.iter().chain(&counter)) {
            *operation = write.operation();
            count += 1;
        }
        // SAFETY: `count` operations were just written, on aligned words in device memory of this
        // context and on the counter; the context is bound. The driver reads them before it
        // returns.
        let status = unsafe { call(stream.raw(), count, operations.as_mut_ptr(), 0) };
        Some(driver.check(CALL, status, || format!("{count} words of {context}")))
    }
}

impl fmt::Debug for WordWrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WordWrites").field(&self.queued).finish()
    }
}
