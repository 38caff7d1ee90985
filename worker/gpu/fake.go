package gpu

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"

	"github.com/troupe-runtime/troupe/runtime/unit"
	"github.com/troupe-runtime/troupe/worker/numa"
)

// maxFake bounds the devices of one fake node.
const maxFake = 64

const fakeModel = "Fake GPU"

// Fake makes devices that exist only in the books, for trying out placement and for
// tests: "fake:2x80GiB", or "fake:2x80GiB:H100" with a model. Their UUIDs are made
// of the node's id and the index, so a restarted agent offers the same ones.
func Fake(spec, node string) (Source, error) {
	bad := func(why string) (Source, error) {
		return nil, fmt.Errorf("GPU specification %q: %s; write for example fake:2x80GiB or fake:2x80GiB:H100", clip(spec), why)
	}
	rest, ok := strings.CutPrefix(spec, "fake:")
	if !ok {
		return bad("it does not begin with \"fake:\"")
	}
	size, model, named := strings.Cut(rest, ":")
	count, memory, ok := strings.Cut(size, "x")
	if !ok {
		return bad("no \"x\" between count and memory")
	}
	n, err := strconv.ParseUint(count, 10, 16)
	if err != nil || n > maxFake {
		return bad(fmt.Sprintf("the count is not a number from 0 to %d", maxFake))
	}
	total, err := unit.ParseBytes(memory)
	if err != nil {
		return bad(err.Error())
	}
	if total <= 0 || Usable(total) <= 0 {
		return bad("a device needs more than 512 MiB")
	}
	if model == "" {
		if named {
			return bad("the model is empty")
		}
		model = fakeModel
	}
	if len(model) > 64 || strings.ContainsFunc(model, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) {
		return bad("the model must be at most 64 printable bytes")
	}
	devices := make(fixed, n)
	for i := range devices {
		devices[i] = Device{
			Index: int64(i), UUID: fakeUUID(node, i), Model: model, Total: total, Used: 0, Health: HealthOK,
			PCI: numa.FakePrefix + strconv.Itoa(i),
		}
	}
	return devices, nil
}

// fakeUUID has the form of NVML's, so that nothing downstream treats fakes apart.
func fakeUUID(node string, index int) string {
	h := sha256.Sum256([]byte("troupe fake gpu\x00" + node + "\x00" + strconv.Itoa(index)))
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// IsFake reports whether spec asks for Fake.
func IsFake(spec string) bool { return strings.HasPrefix(spec, "fake:") }

// clip keeps what strangers send short in errors.
func clip(s string) string {
	const most = 80
	s = strings.ToValidUTF8(s, "?")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
