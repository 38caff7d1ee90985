// Package s3 gives tests a real S3 server (versitygw, built once into the tools' cache)
// on loopback, and a proxy before it that breaks requests on order: refuses them,
// resets connections, loses answers, cuts or alters bodies, waits. Only tests import it;
// nothing of the product lives here.
package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// Credentials of the server's only user. They open nothing but a server on loopback that
// ends with its test.
const (
	AccessKey = "test-access"
	SecretKey = "test-secret-key"
	Bucket    = "checkpoints"
)

// patience bounds the wait for the server to answer.
const patience = 60 * time.Second

// Server is one server with one empty bucket.
type Server struct {
	Endpoint string // http://127.0.0.1:port
	Dir      string // where it keeps objects: <Dir>/<bucket>/<key>
	cmd      *exec.Cmd
	log      *bytes.Buffer
	args     []string
	ended    chan struct{}
}

var binary = sync.OnceValues(func() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		file = fromModule()
	}
	cmd := exec.Command("bash", filepath.Join(filepath.Dir(file), "..", "scripts", "tool.sh"), "versitygw")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build the S3 server: %w\n%s", err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
})

// fromModule finds this file when the build has trimmed its path.
func fromModule() string {
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if _, e := os.Stat(filepath.Join(dir, "go.mod")); e == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return filepath.Join(dir, "test", "s3", "server.go")
}

// Start starts a server that ends with the test, and sets the environment that the
// standard chain of credentials looks at.
func Start(t testing.TB) *Server {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := &Server{Dir: filepath.Join(dir, "objects")}
	for _, d := range []string{s.Dir, filepath.Join(dir, "meta"), filepath.Join(s.Dir, Bucket)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	s.Endpoint = "http://" + addr
	s.args = []string{path, "--quiet", "--port", addr, "--access", AccessKey, "--secret", SecretKey, "posix", "--sidecar", filepath.Join(dir, "meta"), s.Dir}
	Environment(t)
	s.Run(t)
	t.Cleanup(s.Stop)
	return s
}

// Environment sets what the standard chain of credentials finds.
func Environment(t testing.TB) {
	t.Helper()
	for k, v := range Variables() {
		t.Setenv(k, v)
	}
}

// Variables are the environment of a process that may use the server.
func Variables() map[string]string {
	return map[string]string{
		"AWS_ACCESS_KEY_ID": AccessKey, "AWS_SECRET_ACCESS_KEY": SecretKey, "AWS_REGION": "us-east-1",
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
	}
}

// Run starts the server again where it was.
func (s *Server) Run(t testing.TB) {
	t.Helper()
	s.log = &bytes.Buffer{}
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait()
	}()
	deadline := time.Now().Add(patience)
	for {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, s.Endpoint+"/"+Bucket, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = res.Body.Close()
			return
		}
		select {
		case <-s.ended:
			t.Fatalf("the S3 server ended: %s", s.log)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("the S3 server does not answer: %v\n%s", err, s.log)
		}
	}
}

// Stop ends the server and waits for it.
func (s *Server) Stop() {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return
	}
	<-s.ended
}

// Store is the address of a store on the server, through a proxy if there is one.
func (s *Server) Store(prefix string, p *Proxy) string {
	at := s.Endpoint
	if p != nil {
		at = p.Endpoint
	}
	return "s3://" + Bucket + "/" + prefix + "?endpoint=" + at + "&path-style=true"
}

// File is where the server keeps an object.
func (s *Server) File(key string) string {
	return filepath.Join(s.Dir, Bucket, filepath.FromSlash(key))
}
