package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/troupe-runtime/troupe/runtime/api"
)

// A head on an address beyond loopback: who has the join key becomes a node, over TLS,
// and is known again after a restart without it; who has another key is told so.
func TestJoinAHead(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	state := filepath.Join(h.dir, "head")
	for _, args := range [][]string{{"join-key", "new"}, {"head", "init", "--state", state}} {
		if r := h.troupe(args...); r.code != 0 {
			t.Fatal(r)
		}
	}
	head := h.start("head", "start", "--state", state, "--api-address", "0.0.0.0:0")
	at := head.says(`head ready at https://(127\.0\.0\.1:\d+)`)[1]

	worker := []string{"worker", "start", "--state", filepath.Join(h.dir, "node"), "--head", at, "--name", "w"}
	w := h.start(worker...)
	w.says(`msg=registered`)
	if r := h.troupe("run", "--ranks", "1", "--", "sh", "-c", "echo a$TROUPE_JOIN_TOKEN$RANK"); r.code != 0 || r.out != "a0\n" {
		t.Errorf("a job on the node: %v", r)
	}
	if r := h.troupe("context", "list", "-o", "json"); r.code != 0 || !strings.Contains(r.out, `"ca": "sha256:`) {
		t.Errorf("the context pins no certificate: %v", r)
	}
	w.signal(syscall.SIGTERM)
	if r := w.wait(); r.code != 0 {
		t.Error(r)
	}

	// The certificate is enough from now on.
	key := strings.TrimSpace(h.troupe("join-key", "path").out)
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	w = h.start(worker...)
	w.says(`msg=registered`)
	w.signal(syscall.SIGTERM)
	if r := w.wait(); r.code != 0 {
		t.Error(r)
	}

	stranger := []string{"worker", "start", "--state", filepath.Join(h.dir, "other"), "--head", at}
	if r := h.troupe(stranger...); r.code != api.ExitNever || !strings.Contains(r.errout, "troupe join-key new") {
		t.Errorf("without a key: %v", r)
	}
	if r := h.troupe("join-key", "new"); r.code != 0 {
		t.Fatal(r)
	}
	if r := h.troupe(stranger...); r.code != api.ExitDenied || !strings.Contains(r.errout, "does not accept the join key of this host") || strings.Count(r.errout, "\n") > 3 {
		t.Errorf("with another key: %v", r)
	}
	head.says(`join refused.*refused_so_far=1`)
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	if r := h.troupe(stranger...); r.code != api.ExitDenied || !strings.Contains(r.errout, "chmod 600") {
		t.Errorf("with a key that others can read: %v", r)
	}
	if r := h.troupe("worker", "start", "--state", filepath.Join(h.dir, "third"), "--head", "127.0.0.1:1", "--local-addr", "nonsense"); r.code != api.ExitUsage {
		t.Errorf("a local address that is none: %v", r)
	}
	head.signal(syscall.SIGTERM)
	if r := head.wait(); r.code != 0 {
		t.Error(r)
	}
}
