//! Stream memory operations: stores of words that are given to a stream in one call of the driver.

use std::fmt;

use cudarc::driver::sys::{
    CUdeviceptr, CUstreamBatchMemOpParams,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as WriteValue,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 as WriteValueWord,
    CUstreamBatchMemOpType,
};

use crate::copy::request::Word;
use crate::driver::error::CudaError;
use crate::driver::stream::Stream;
use ::engine::atomic::Width;

/// Most words that are stored by one call.
pub(crate) const MOST_WRITES: usize = 64;

/// A store of a word that was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    addr: usize,
    width: Width,
    value: u64,
}

impl Write {
    pub(crate) fn new(word: &Word<'_>, value: u64) -> Self {
        Self { addr: word.addr, width: word.width, value }
    }

    #[inline]
    pub(crate) fn give(&self, stream: &Stream) -> Result<(), CudaError> {
        let Self { addr, width, value } = *self;
        let context = stream.context();
        let driver = context.driver();
        let (device, raw) = (addr as CUdeviceptr, stream.raw());
        let missing = || driver.lacks("cuStreamWriteValue", context.to_string());
        let (call, status) = match width {
            Width::Eight => {
                let write = driver.api.cuStreamWriteValue64_v2.ok_or_else(missing)?;
                // SAFETY: aligned device memory of this context; it is bound.
                ("cuStreamWriteValue64_v2", unsafe { write(raw, device, value, 0) })
            }
            _ => {
                let write = driver.api.cuStreamWriteValue32_v2.ok_or_else(missing)?;
                // SAFETY: aligned device memory of this context; it is bound.
                ("cuStreamWriteValue32_v2", unsafe { write(raw, device, value as u32, 0) })
            }
        };
        driver.check(call, status, || format!("the word at {addr:#x} of {context}"))
    }
}

/// Room for what one call of the driver is to store; none where it does not take several.
#[derive(Default)]
pub(crate) struct Batch(Box<[CUstreamBatchMemOpParams]>);

impl Batch {
    pub(crate) fn new() -> Self {
        Self((0..=MOST_WRITES).map(|_| CUstreamBatchMemOpParams { pad: [0; 6] }).collect())
    }

    pub(crate) fn give(
        &mut self,
        stream: &Stream,
        words: impl Iterator<Item = Write>,
        behind: Option<CUstreamBatchMemOpParams>,
    ) -> Option<Result<(), CudaError>> {
        let Self(operations) = self;
        let context = stream.context();
        let driver = context.driver();
        let call = driver.api.cuStreamBatchMemOp_v2.filter(|_| !operations.is_empty())?;
        let mut count = 0;
        let operation = |write: Write| write_operation(write.addr, write.width, write.value);
        let given = words.map(operation).chain(behind);
        for (operation, given) in operations.iter_mut().zip(given) {
            *operation = given;
            count += 1;
        }
        // SAFETY: so many operations were just written, on aligned words in device memory of this
        // context and on a mark; the context is bound. The driver has read them when it returns.
        let status = unsafe { call(stream.raw(), count, operations.as_mut_ptr(), 0) };
        Some(
            driver.check("cuStreamBatchMemOp_v2", status, || format!("{count} words of {context}")),
        )
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Batch").field(&self.0.len()).finish()
    }
}

#[inline]
pub(crate) fn write_operation(addr: usize, width: Width, value: u64) -> CUstreamBatchMemOpParams {
    let operation = match width {
        Width::Eight => CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64,
        _ => CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32,
    };
    let write = WriteValue {
        operation,
        address: addr as CUdeviceptr,
        // Of a word of four bytes the low half, as on any little endian machine.
        __bindgen_anon_1: WriteValueWord { value64: value },
        flags: 0,
        alias: 0,
    };
    CUstreamBatchMemOpParams { writeValue: write }
}
