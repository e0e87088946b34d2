//! Stream memory operations: stores of words that are given to a stream in one call of the driver.

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

/// Most words that are stored by one call.
pub(crate) const MAX_WRITES: usize = 64;

/// A checked store of a word of 4 or 8 bytes, in device memory or page-locked memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) addr: usize,
    pub(crate) width: Width,
    pub(crate) value: u64,
}

impl Write {
    /// Gives it to a stream, whose context is bound.
    pub(crate) fn give(&self, stream: &Stream) -> Result<(), CudaError> {
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
            // Of a word of four bytes the low half, as on any little endian machine.
            __bindgen_anon_1: WriteValueWord { value64: self.value },
            flags: 0,
            alias: 0,
        };
        CUstreamBatchMemOpParams { writeValue: write }
    }
}

/// Stores that wait, with room for the call; none where the driver takes no several in one.
pub(crate) struct Writes {
    waiting: Vec<Write>,
    operations: Box<[CUstreamBatchMemOpParams]>,
}

impl Writes {
    pub(crate) fn new() -> Self {
        let operations = (0..=MAX_WRITES).map(|_| CUstreamBatchMemOpParams { pad: [0; 6] });
        Self { waiting: Vec::with_capacity(MAX_WRITES), operations: operations.collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    pub(crate) fn push(&mut self, write: Write) {
        self.waiting.push(write);
    }

    /// Gives a stream what waits, in its order: in one call, with the `mark` behind it, or one by
    /// one and without. Returns whether the mark went along. `some` is set once one is given. The
    /// context is bound.
    pub(crate) fn give(
        &mut self,
        stream: &Stream,
        mark: Option<Write>,
        some: &mut bool,
    ) -> Result<bool, CudaError> {
        match self.give_together(stream, mark) {
            Some(Ok(())) => {
                *some = true;
                self.clear();
                return Ok(mark.is_some());
            }
            // Some drivers list the function and refuse it.
            Some(Err(error)) if error.code == code::NOT_SUPPORTED => {
                self.operations = Box::default();
            }
            Some(Err(error)) => return Err(error),
            None => {}
        }
        for write in self.waiting.drain(..) {
            write.give(stream)?;
            *some = true;
        }
        Ok(false)
    }

    fn give_together(
        &mut self,
        stream: &Stream,
        mark: Option<Write>,
    ) -> Option<Result<(), CudaError>> {
        const CALL: &str = "cuStreamBatchMemOp_v2";
        let Self { waiting, operations } = self;
        let context = stream.context();
        let driver = context.driver();
        let call = driver.api.cuStreamBatchMemOp_v2.filter(|_| !operations.is_empty())?;
        let mut count = 0;
        for (operation, write) in operations.iter_mut().zip(waiting.iter().chain(&mark)) {
            *operation = write.operation();
            count += 1;
        }
        // SAFETY: so many operations were just written, on aligned words in device memory of this
        // context and on a mark; the context is bound. The driver has read them when it returns.
        let status = unsafe { call(stream.raw(), count, operations.as_mut_ptr(), 0) };
        Some(driver.check(CALL, status, || format!("{count} words of {context}")))
    }
}

impl fmt::Debug for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Writes").field(&self.waiting).finish()
    }
}
