/* Stands in for a CUDA driver that has what is needed and nothing more. With MISSING it lacks a
   function that is needed. */
#define ANSWERS(name) int name(void) { return 0; }

int cuDriverGetVersion(int *version) { *version = 11040; return 0; }
int cuGetErrorName(int code, const char **name) { *name = "OLD"; return 0 * code; }
int cuGetErrorString(int code, const char **text) { *text = "old"; return 0 * code; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)0x10; return 0 * device; }
int cuCtxGetCurrent(void **context) { *context = (void *)0x10; return 0; }
ANSWERS(cuInit)
ANSWERS(cuDeviceGetCount)
ANSWERS(cuDeviceGetAttribute)
ANSWERS(cuDeviceGetName)
ANSWERS(cuDeviceGetPCIBusId)
ANSWERS(cuDevicePrimaryCtxRelease_v2)
ANSWERS(cuDevicePrimaryCtxGetState)
ANSWERS(cuCtxPushCurrent_v2)
ANSWERS(cuCtxPopCurrent_v2)
ANSWERS(cuCtxGetDevice)
ANSWERS(cuThreadExchangeStreamCaptureMode)
ANSWERS(cuCtxGetStreamPriorityRange)
ANSWERS(cuPointerGetAttributes)
ANSWERS(cuMemGetAddressRange_v2)
ANSWERS(cuMemAlloc_v2)
ANSWERS(cuMemFree_v2)
ANSWERS(cuMemHostAlloc)
ANSWERS(cuMemFreeHost)
ANSWERS(cuStreamCreateWithPriority)
ANSWERS(cuStreamDestroy_v2)
ANSWERS(cuStreamQuery)
ANSWERS(cuEventCreate)
ANSWERS(cuEventRecord)
ANSWERS(cuEventQuery)
ANSWERS(cuEventDestroy_v2)
ANSWERS(cuMemcpyHtoDAsync_v2)
#ifndef MISSING
ANSWERS(cuMemcpyDtoHAsync_v2)
#endif
