// The names of CUDA's driver that gpu/driver.cuh fetches; here none is found but what asks for an attribute, and the
// answer is 0.
#pragma once

enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_OUT_OF_MEMORY = 2 };
enum CUdevice_attribute { CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124 };
enum CUmemRangeHandleType { CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 };

CUresult cuGetErrorString(CUresult result, char const** text);
inline CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, int) { return *value = 0, CUDA_SUCCESS; }
CUresult cuMemGetHandleForAddressRange(void* handle, unsigned long long address, std::size_t size, CUmemRangeHandleType,
                                       unsigned long long flags);
CUresult cuTensorMapEncodeTiled();

#include "../driver_names.h"
