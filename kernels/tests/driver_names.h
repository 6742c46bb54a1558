// Names of CUDA's driver that gpu/driver.cuh fetches and the stand-ins for cuda.h never find: declared so that a table of
// functions can name them. Included where CUresult is known.
#pragma once

CUresult cuMemGetAllocationGranularity();
CUresult cuMemCreate();
CUresult cuMemRelease();
CUresult cuMemAddressReserve();
CUresult cuMemAddressFree();
CUresult cuMemMap();
CUresult cuMemUnmap();
CUresult cuMemSetAccess();
CUresult cuMulticastCreate();
CUresult cuMulticastAddDevice();
CUresult cuMulticastBindMem();
CUresult cuMulticastUnbind();
CUresult cuMulticastGetGranularity();
