//go:build !cgo || nonvml

package main

// hasNVML says that this binary cannot look for GPUs through NVML.
const hasNVML = false
