// The slots of ONNX Runtime's OrtApi that the shim calls, by their place in
// the table. The table only grows, so a slot's number holds for every API
// version from the one below on; a test compares numbers and parameter
// counts with the header of the Go binding, which the shim cannot include
// because a module cannot name another module's directory.
#ifndef NEREID_ORT_API_H
#define NEREID_ORT_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ORT_API_VERSION_USED = 24 };

typedef struct OrtStatus OrtStatus;
typedef struct OrtSession OrtSession;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtValue OrtValue;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorInfo OrtTensorInfo;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtEnv OrtEnv;
typedef struct OrtThreadingOptions OrtThreadingOptions;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtHardwareDevice OrtHardwareDevice;

typedef void (*OrtSlot)(void);

typedef struct {
  const OrtSlot *(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} OrtApiBase;

#define ORT_SLOTS(X) \
  X(1, int, GetErrorCode, (const OrtStatus *)) \
  X(2, const char *, GetErrorMessage, (const OrtStatus *)) \
  X(9, OrtStatus *, Run, (OrtSession *, const OrtRunOptions *, const char *const *, const OrtValue *const *, size_t, const char *const *, size_t, OrtValue **)) \
  X(30, OrtStatus *, SessionGetInputCount, (const OrtSession *, size_t *)) \
  X(31, OrtStatus *, SessionGetOutputCount, (const OrtSession *, size_t *)) \
  X(32, OrtStatus *, SessionGetOverridableInitializerCount, (const OrtSession *, size_t *)) \
  X(33, OrtStatus *, SessionGetInputTypeInfo, (const OrtSession *, size_t, OrtTypeInfo **)) \
  X(34, OrtStatus *, SessionGetOutputTypeInfo, (const OrtSession *, size_t, OrtTypeInfo **)) \
  X(35, OrtStatus *, SessionGetOverridableInitializerTypeInfo, (const OrtSession *, size_t, OrtTypeInfo **)) \
  X(36, OrtStatus *, SessionGetInputName, (const OrtSession *, size_t, OrtAllocator *, char **)) \
  X(37, OrtStatus *, SessionGetOutputName, (const OrtSession *, size_t, OrtAllocator *, char **)) \
  X(38, OrtStatus *, SessionGetOverridableInitializerName, (const OrtSession *, size_t, OrtAllocator *, char **)) \
  X(39, OrtStatus *, CreateRunOptions, (OrtRunOptions **)) \
  X(46, OrtStatus *, RunOptionsSetTerminate, (OrtRunOptions *)) \
  X(47, OrtStatus *, RunOptionsUnsetTerminate, (OrtRunOptions *)) \
  X(48, OrtStatus *, CreateTensorAsOrtValue, (OrtAllocator *, const int64_t *, size_t, int, OrtValue **)) \
  X(49, OrtStatus *, CreateTensorWithDataAsOrtValue, (const OrtMemoryInfo *, void *, size_t, const int64_t *, size_t, int, OrtValue **)) \
  X(51, OrtStatus *, GetTensorMutableData, (OrtValue *, void **)) \
  X(55, OrtStatus *, CastTypeInfoToTensorInfo, (const OrtTypeInfo *, const OrtTensorInfo **)) \
  X(56, OrtStatus *, GetOnnxTypeFromTypeInfo, (const OrtTypeInfo *, int *)) \
  X(60, OrtStatus *, GetTensorElementType, (const OrtTensorInfo *, int *)) \
  X(61, OrtStatus *, GetDimensionsCount, (const OrtTensorInfo *, size_t *)) \
  X(62, OrtStatus *, GetDimensions, (const OrtTensorInfo *, int64_t *, size_t)) \
  X(65, OrtStatus *, GetTensorTypeAndShape, (const OrtValue *, OrtTensorInfo **)) \
  X(69, OrtStatus *, CreateCpuMemoryInfo, (int, int, OrtMemoryInfo **)) \
  X(76, OrtStatus *, AllocatorFree, (OrtAllocator *, void *)) \
  X(78, OrtStatus *, GetAllocatorWithDefaultOptions, (OrtAllocator **)) \
  X(92, void, ReleaseEnv, (OrtEnv *)) \
  X(93, void, ReleaseStatus, (OrtStatus *)) \
  X(94, void, ReleaseMemoryInfo, (OrtMemoryInfo *)) \
  X(96, void, ReleaseValue, (OrtValue *)) \
  X(97, void, ReleaseRunOptions, (OrtRunOptions *)) \
  X(98, void, ReleaseTypeInfo, (OrtTypeInfo *)) \
  X(99, void, ReleaseTensorTypeAndShapeInfo, (OrtTensorInfo *)) \
  X(119, OrtStatus *, CreateEnvWithGlobalThreadPools, (int, const char *, const OrtThreadingOptions *, OrtEnv **)) \
  X(120, OrtStatus *, DisablePerSessionThreads, (OrtSessionOptions *)) \
  X(121, OrtStatus *, CreateThreadingOptions, (OrtThreadingOptions **)) \
  X(122, void, ReleaseThreadingOptions, (OrtThreadingOptions *)) \
  X(127, OrtStatus *, GetStringTensorElementLength, (const OrtValue *, size_t, size_t *)) \
  X(128, OrtStatus *, GetStringTensorElement, (const OrtValue *, size_t, size_t, void *)) \
  X(147, OrtStatus *, SetGlobalIntraOpNumThreads, (OrtThreadingOptions *, int)) \
  X(148, OrtStatus *, SetGlobalInterOpNumThreads, (OrtThreadingOptions *, int)) \
  X(149, OrtStatus *, SetGlobalSpinControl, (OrtThreadingOptions *, int)) \
  X(165, OrtStatus *, AddRunConfigEntry, (OrtRunOptions *, const char *, const char *)) \
  X(252, OrtStatus *, GetResizedStringTensorElementBuffer, (OrtValue *, size_t, size_t, char **)) \
  X(293, OrtStatus *, SessionOptionsSetLoadCancellationFlag, (OrtSessionOptions *, bool)) \
  X(301, OrtStatus *, RegisterExecutionProviderLibrary, (OrtEnv *, const char *, const char *)) \
  X(302, OrtStatus *, UnregisterExecutionProviderLibrary, (OrtEnv *, const char *)) \
  X(303, OrtStatus *, GetEpDevices, (const OrtEnv *, const OrtEpDevice *const **, size_t *)) \
  X(304, OrtStatus *, SessionOptionsAppendExecutionProvider_V2, (OrtSessionOptions *, OrtEnv *, const OrtEpDevice *const *, size_t, const char *const *, const char *const *, size_t)) \
  X(307, int, HardwareDevice_Type, (const OrtHardwareDevice *)) \
  X(312, const char *, EpDevice_EpName, (const OrtEpDevice *)) \
  X(316, const OrtHardwareDevice *, EpDevice_Device, (const OrtEpDevice *)) \
  X(390, bool, TensorTypeAndShape_HasShape, (const OrtTensorInfo *))

#define X(slot, result, name, parameters) \
  enum { ORT_SLOT_##name = slot };        \
  typedef result(*Ort##name) parameters;
ORT_SLOTS(X)
#undef X

// ORT(api, Name)(arguments) calls a slot.
#define ORT(api, name) ((Ort##name)(api)[ORT_SLOT_##name])

enum { ORT_TYPE_STRING = 8, ORT_ONNX_TENSOR = 1, ORT_DEVICE_ALLOCATOR = 0, ORT_MEMTYPE_DEFAULT = 0, ORT_LOG_FATAL = 4, ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_DEVICE_CPU = 0 };

#endif
