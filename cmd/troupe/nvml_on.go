//go:build cgo && !nonvml

package main

// hasNVML says that this binary can look for GPUs through NVML.
const hasNVML = true
