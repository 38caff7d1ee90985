//go:build linux && cgo && !nonvml

package gpu

import (
	"errors"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

// library builds the stand-in for NVML. Its behaviour comes from the environment and
// not from several libraries: the loader binds a function once for a process.
func library(t *testing.T, flags ...string) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("skipped: needs gcc to build the library that stands in for NVML")
	}
	out := filepath.Join(t.TempDir(), "libnvidia-ml-test.so")
	args := append([]string{"-shared", "-fPIC", "-o", out, "testdata/nvml.c"}, flags...)
	if b, err := exec.CommandContext(t.Context(), gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
	return out
}

func TestNVML(t *testing.T) {
	lib := library(t)
	open := func(t *testing.T, mode string) Source {
		t.Helper()
		t.Setenv("NVML_TEST", mode)
		s, err := NVML(NVMLOptions{Library: lib})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	read := func(t *testing.T, s Source) []Device {
		t.Helper()
		d, err := s.Devices(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}

	t.Run("two", func(t *testing.T) {
		d := read(t, open(t, "two"))
		want := Device{
			Index: 1, UUID: "GPU-00000000-0000-0000-0000-000000000001", Model: "Test GPU 1",
			Total: 80 * unit.GiB, Used: 2 * unit.GiB, Health: HealthOK,
		}
		if len(d) != 2 || !reflect.DeepEqual(d[1], want) {
			t.Fatalf("got %+v, want the second to be %+v", d, want)
		}
	})
	t.Run("used", func(t *testing.T) {
		t.Setenv("NVML_TEST_PID", "4242")
		d := read(t, open(t, "used"))
		want := []Process{{PID: 4242, Memory: 30 * unit.GiB}, {PID: 1, Memory: -1}}
		if len(d) != 2 || !reflect.DeepEqual(d[1].Processes, want) || d[1].Idle() || d[0].Processes != nil || !d[0].Idle() {
			t.Fatalf("got %+v, want the second used by %+v", d, want)
		}
	})
	t.Run("zero", func(t *testing.T) {
		if d := read(t, open(t, "zero")); len(d) != 0 {
			t.Fatalf("got %+v", d)
		}
	})
	t.Run("lost", func(t *testing.T) {
		d := read(t, open(t, "lost"))
		if len(d) != 2 || d[0].Health != HealthOK || d[1].Health != HealthLost || d[1].Used != -1 {
			t.Fatalf("got %+v, want only the second lost", d)
		}
	})
	t.Run("liar", func(t *testing.T) {
		d := read(t, open(t, "liar"))
		if len(d) != 2 || d[0].Health != HealthUnknown || d[0].Total != 0 || d[1].Health != HealthOK {
			t.Fatalf("got %+v, want the first of unknown health", d)
		}
	})
	t.Run("absent", func(t *testing.T) {
		t.Setenv("NVML_TEST", "absent")
		if _, err := NVML(NVMLOptions{Library: lib}); !errors.Is(err, ErrNoDriver) {
			t.Fatalf("got %v, want ErrNoDriver", err)
		}
	})
	// Last: it leaves a call behind in the library.
	t.Run("hang", func(t *testing.T) {
		t.Setenv("NVML_TEST", "two")
		s, err := NVML(NVMLOptions{Library: lib, Patience: 50 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		read(t, s)
		t.Setenv("NVML_TEST", "hang")
		for range 2 { // the second finds the goroutine busy
			for _, d := range read(t, s) {
				if d.Health != HealthUnknown || d.Used != -1 || d.Total != 80*unit.GiB || d.UUID == "" {
					t.Fatalf("a stuck driver must leave health unknown and identity known, got %+v", d)
				}
			}
		}
		if err := s.Close(); !errors.Is(err, ErrStuck) {
			t.Fatalf("close of a stuck driver: %v, want ErrStuck", err)
		}
	})
}

// A driver that does not tell processes serves without.
func TestNVMLQuiet(t *testing.T) {
	t.Setenv("NVML_TEST", "used")
	s, err := NVML(NVMLOptions{Library: library(t, "-DQUIET")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	d, err := s.Devices(t.Context())
	if err != nil || len(d) != 2 || d[1].Processes != nil || d[1].Idle() {
		t.Fatalf("%+v, %v", d, err)
	}
}

func TestNVMLOld(t *testing.T) {
	if _, err := NVML(NVMLOptions{Library: library(t, "-DOLD")}); !errors.Is(err, ErrNoDriver) {
		t.Fatalf("a driver without a function that is needed: %v, want ErrNoDriver", err)
	}
}

func TestNVMLWithoutDriver(t *testing.T) {
	if _, err := NVML(NVMLOptions{Library: filepath.Join(t.TempDir(), "none.so")}); !errors.Is(err, ErrNoDriver) {
		t.Fatalf("got %v, want ErrNoDriver", err)
	}
}
