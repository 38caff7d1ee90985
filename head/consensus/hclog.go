package consensus

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// hcLog hands the libraries' log lines to slog, one level lower than they think of
// themselves: a single voter that elects itself is no warning.
type hcLog struct {
	slog *slog.Logger
	name string
	args []any
}

var _ hclog.Logger = (*hcLog)(nil)

func newHCLog(l *slog.Logger) *hcLog { return &hcLog{slog: l, name: "raft"} }

func slogLevel(l hclog.Level) slog.Level {
	switch {
	case l >= hclog.Error:
		return slog.LevelError
	case l == hclog.Warn:
		return slog.LevelInfo
	case l == hclog.Info:
		return slog.LevelDebug
	default:
		return slog.LevelDebug - 4
	}
}

func (h *hcLog) enabled(l hclog.Level) bool {
	return h.slog.Enabled(context.Background(), slogLevel(l))
}

func (h *hcLog) Log(level hclog.Level, msg string, args ...any) {
	if !h.enabled(level) {
		return
	}
	out := make([]any, 0, len(args)+2)
	out = append(out, "part", h.name)
	for _, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			if pattern, ok := f[0].(string); ok {
				a = fmt.Sprintf(pattern, f[1:]...)
			}
		}
		out = append(out, a)
	}
	h.slog.Log(context.Background(), slogLevel(level), msg, out...)
}

func (h *hcLog) Trace(msg string, args ...any) { h.Log(hclog.Trace, msg, args...) }
func (h *hcLog) Debug(msg string, args ...any) { h.Log(hclog.Debug, msg, args...) }
func (h *hcLog) Info(msg string, args ...any)  { h.Log(hclog.Info, msg, args...) }
func (h *hcLog) Warn(msg string, args ...any)  { h.Log(hclog.Warn, msg, args...) }
func (h *hcLog) Error(msg string, args ...any) { h.Log(hclog.Error, msg, args...) }
func (h *hcLog) IsTrace() bool                 { return h.enabled(hclog.Trace) }
func (h *hcLog) IsDebug() bool                 { return h.enabled(hclog.Debug) }
func (h *hcLog) IsInfo() bool                  { return h.enabled(hclog.Info) }
func (h *hcLog) IsWarn() bool                  { return h.enabled(hclog.Warn) }
func (h *hcLog) IsError() bool                 { return h.enabled(hclog.Error) }
func (h *hcLog) ImpliedArgs() []any            { return h.args }
func (h *hcLog) Name() string                  { return h.name }

func (h *hcLog) With(args ...any) hclog.Logger {
	return &hcLog{slog: h.slog.With(args...), name: h.name, args: append(append([]any{}, h.args...), args...)}
}

func (h *hcLog) Named(name string) hclog.Logger {
	return &hcLog{slog: h.slog, name: h.name + "." + name, args: h.args}
}

func (h *hcLog) ResetNamed(name string) hclog.Logger {
	return &hcLog{slog: h.slog, name: name, args: h.args}
}

// SetLevel does nothing: the level is slog's.
func (h *hcLog) SetLevel(hclog.Level) {}

func (h *hcLog) GetLevel() hclog.Level { return hclog.NoLevel }

func (h *hcLog) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(h.StandardWriter(nil), "", 0)
}

func (h *hcLog) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return hcWriter{h} }

type hcWriter struct{ h *hcLog }

func (w hcWriter) Write(p []byte) (int, error) {
	w.h.Info(string(bytes.TrimSpace(p)))
	return len(p), nil
}
