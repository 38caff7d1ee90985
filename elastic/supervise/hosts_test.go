package supervise

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// host is "a" to "z", who came n seconds after the beginning.
func host(id string, n int) Host {
	return Host{ID: id, Name: "gpu-" + id, Rank: -1, Since: epoch.Add(time.Duration(n) * time.Second)}
}

func TestForm(t *testing.T) {
	asked := func(id string, n int, rank int64) Host { h := host(id, n); h.Rank = rank; return h }
	for _, tc := range []struct {
		name    string
		g       Hosts
		after   time.Duration
		members string
		changed bool
		giveUp  bool
		delay   time.Duration
		text    string
	}{
		{"all are there", Hosts{Min: 2, Max: 2, There: []Host{host("b", 0), host("a", 5)}}, 5 * time.Second, "a b", true, false, 0, "2 hosts: gpu-a, gpu-b"},
		{"one is missing", Hosts{Min: 2, Max: 2, There: []Host{host("a", 0)}}, time.Second, "", false, false, 599 * time.Second, "1 of at least 2 hosts"},
		{"for too long", Hosts{Min: 2, Max: 2, There: []Host{host("a", 0)}}, 10 * time.Minute, "", false, true, 0, "after 10m0s"},
		{"enough, and a last call", Hosts{Min: 1, Max: 3, There: []Host{host("a", 0), host("b", 9)}}, 10 * time.Second, "", false, false, 20 * time.Second, "2 of at most 3 hosts"},
		{"the last call is over", Hosts{Min: 2, Max: 3, There: []Host{host("a", 0), host("b", 10)}}, 40 * time.Second, "a b", true, false, 0, ""},
		{"one too many", Hosts{Min: 2, Max: 2, There: []Host{host("a", 3), host("b", 1), host("c", 2)}}, 4 * time.Second, "b c", true, false, 0, ""},
		{"as it is", Hosts{Min: 1, Max: 2, Members: []string{"b", "a"}, There: []Host{host("a", 0), host("b", 1)}}, time.Hour, "b a", false, false, 0, ""},
		{"one too many beside a group", Hosts{Min: 2, Max: 2, Members: []string{"b", "a"}, There: []Host{host("a", 0), host("b", 1), host("c", 2)}}, time.Hour, "b a", false, false, 0, ""},
		{"one leaves, enough are left", Hosts{Min: 2, Max: 3, Members: []string{"a", "b", "c"}, There: []Host{host("a", 0), host("c", 0)}}, time.Hour, "a c", true, false, 0, ""},
		{"one leaves, another has waited", Hosts{Min: 2, Max: 2, Members: []string{"a", "b"}, There: []Host{host("b", 0), host("c", 0)}}, time.Hour, "b c", true, false, 0, ""},
		{"one leaves, too few are left", Hosts{Min: 2, Max: 2, Members: []string{"a", "b"}, There: []Host{host("b", 0)}}, time.Hour, "", true, false, 0, "1 host of the 2"},
		{"one comes", Hosts{Min: 1, Max: 3, Members: []string{"b"}, There: []Host{host("b", 0), host("a", 60)}}, time.Hour, "b a", true, false, 0, ""},
		{"places that were asked for", Hosts{Min: 3, Max: 3, There: []Host{asked("a", 0, 2), asked("b", 0, 0), host("c", 0)}}, 0, "b a c", true, false, 0, ""},
		{"a place that was asked for comes back", Hosts{Min: 2, Max: 3, Members: []string{"a", "c"}, There: []Host{asked("a", 0, 0), asked("c", 0, 2), asked("b", 9, 1)}}, time.Hour, "a b c", true, false, 0, ""},
		{"names in natural order", Hosts{Min: 3, Max: 3, There: []Host{{ID: "x", Name: "gpu-10", Rank: -1}, {ID: "y", Name: "gpu-9", Rank: -1}, {ID: "z", Name: "gpu-1", Rank: -1}}}, 0, "z y x", true, false, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.g.LastCall, tc.g.Patience, tc.g.Since = 30*time.Second, 10*time.Minute, epoch
			s := Form(tc.g, epoch.Add(tc.after))
			if strings.Join(s.Members, " ") != tc.members || s.Changed != tc.changed || s.GiveUp != tc.giveUp || !strings.Contains(s.Text, tc.text) {
				t.Errorf("formed %+v", s)
			}
			if d := s.Delay - tc.delay; d < -time.Second || d > time.Second {
				t.Errorf("waits %s, want %s", s.Delay, tc.delay)
			}
		})
	}
}

// Whatever comes and goes: nothing outside of MIN to MAX is formed, of hosts that are
// there, each once; members that stay keep their order; asked again, the answer stands.
func TestFormProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := Hosts{LastCall: 30 * time.Second, Patience: 10 * time.Minute, Since: epoch}
		g.Min = rapid.IntRange(1, 4).Draw(t, "min")
		g.Max = rapid.IntRange(g.Min, 6).Draw(t, "max")
		now := epoch
		for range rapid.IntRange(1, 20).Draw(t, "changes") {
			now = now.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "seconds")) * time.Second)
			id := fmt.Sprint(rapid.IntRange(0, 7).Draw(t, "host"))
			if i := slices.IndexFunc(g.There, func(h Host) bool { return h.ID == id }); i >= 0 {
				g.There = slices.Delete(slices.Clone(g.There), i, i+1)
			} else {
				g.There = append(g.There, Host{ID: id, Name: "n" + id, Rank: -1, Since: now})
			}
			s := Form(g, now)
			if len(s.Members) != 0 && (len(s.Members) < g.Min || len(s.Members) > g.Max) {
				t.Fatalf("%d hosts, allowed %d to %d", len(s.Members), g.Min, g.Max)
			}
			seen := map[string]bool{}
			var kept []string
			for _, m := range s.Members {
				if seen[m] || !slices.ContainsFunc(g.There, func(h Host) bool { return h.ID == m }) {
					t.Fatalf("%s is in twice or not there: %v", m, s.Members)
				}
				seen[m] = true
				if slices.Contains(g.Members, m) {
					kept = append(kept, m)
				}
			}
			var want []string
			for _, m := range g.Members {
				if seen[m] {
					want = append(want, m)
				}
			}
			if !slices.Equal(kept, want) {
				t.Fatalf("the order of those that stay changed: %v, was %v", kept, want)
			}
			if s.Changed == slices.Equal(s.Members, g.Members) && !s.GiveUp {
				t.Fatalf("changed %v from %v to %v", s.Changed, g.Members, s.Members)
			}
			if s.Changed {
				g.Members = s.Members
				if len(s.Members) == 0 {
					g.Since = now
				}
			}
			if again := Form(g, now); again.Changed {
				t.Fatalf("asked again it changes from %v to %v", g.Members, again.Members)
			}
		}
	})
}
