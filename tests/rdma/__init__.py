"""RDMA without RDMA hardware: two emulated guests with Soft-RoCE between them (`make test-rdma`)."""
