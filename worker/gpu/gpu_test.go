package gpu

import (
	"log/slog"
	"testing"

	"pgregory.net/rapid"

	"github.com/troupe-runtime/troupe/runtime/unit"
)

func TestUsable(t *testing.T) {
	for _, c := range []struct{ total, want unit.Bytes }{
		{0, 0},
		{511 * unit.MiB, 0},
		{8 * unit.GiB, 8*unit.GiB - 512*unit.MiB},
		{100 * unit.GiB, 97 * unit.GiB},
		{1<<63 - 1, 8946670875749132533},
	} {
		if got := Usable(c.total); got != c.want {
			t.Errorf("Usable(%d) = %d, want %d", c.total, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a := unit.Bytes(rapid.Int64Range(0, 1<<62).Draw(t, "total"))
		if u := Usable(a); u < 0 || u > a || u > Usable(a+1) {
			t.Fatalf("Usable(%d) = %d, Usable(+1) = %d: not between 0 and total, or not growing", a, u, Usable(a+1))
		}
	})
}

func TestFake(t *testing.T) {
	devices := func(spec, node string) []Device {
		t.Helper()
		s, err := Open(spec, node, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		d, err := s.Devices(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := devices("fake:2x80GiB:H100", "n1")
	if len(d) != 2 || d[0].Total != 80*unit.GiB || d[1].Model != "H100" || d[1].Index != 1 || d[0].Health != HealthOK {
		t.Fatalf("got %+v", d)
	}
	again, other := devices("fake:2x80GiB", "n1"), devices("fake:2x80GiB", "n2")
	if again[0].UUID != d[0].UUID || again[0].UUID == again[1].UUID || again[0].UUID == other[0].UUID {
		t.Fatalf("UUIDs must be the same for the same node and index alone: %s %s %s", d[0].UUID, again[1].UUID, other[0].UUID)
	}
	g := d[1].API()
	if g.Usable != int64(Usable(80*unit.GiB)) || g.Used == nil || *g.Used != 0 {
		t.Fatalf("got %+v", g)
	}
	if g := (Device{Used: -1}).API(); g.Used != nil {
		t.Fatalf("unknown use must be absent, got %+v", g)
	}
	if d := devices("none", "n1"); len(d) != 0 {
		t.Fatalf("got %+v", d)
	}
	for _, bad := range []string{
		"fake:", "fake:2", "fake:x80GiB", "fake:-1x80GiB", "fake:65x80GiB", "fake:2x", "fake:2x0", "fake:2x512MiB",
		"fake:2x80GiB:", "fake:2x80GiB:\x1b[2J", "fake:99999999999x1GiB", "h100", "fake:1x9999999999999999GiB",
	} {
		if _, err := Open(bad, "n1", slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func FuzzFake(f *testing.F) {
	f.Add("fake:2x80GiB:H100")
	f.Fuzz(func(t *testing.T, spec string) {
		s, err := Fake(spec, "n")
		if (err == nil) == (s == nil) {
			t.Fatalf("source %v with error %v", s, err)
		}
	})
}
