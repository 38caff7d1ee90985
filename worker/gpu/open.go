package gpu

import (
	"errors"
	"log/slog"
)

// Open makes the source that spec asks for: "" or "auto" is NVML, or no GPUs with one
// line in the log where there is no driver; "none" is no GPUs; "fake:…" as in Fake.
// node is the node's id.
func Open(spec, node string, log *slog.Logger) (Source, error) {
	switch {
	case spec == "none":
		return None(), nil
	case IsFake(spec):
		return Fake(spec, node)
	case spec != "" && spec != "auto":
		return Fake(spec, node) // its error names what is accepted
	}
	s, err := NVML(NVMLOptions{})
	if errors.Is(err, ErrNoDriver) {
		log.Info("this node offers no GPUs", "reason", err)
		return None(), nil
	}
	return s, err
}
