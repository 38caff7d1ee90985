//go:build !linux || !cgo || nonvml

package gpu

import "fmt"

// NVML is not in this build.
func NVML(NVMLOptions) (Source, error) {
	return nil, fmt.Errorf("%w: this binary was built without NVML", ErrNoDriver)
}
